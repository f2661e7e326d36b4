"""Embedded cases: samples with the pooled logits of their networks, predicted once where a protocol reads them."""

import pickle

import numpy as np
import pytest
import torch

from segcal.benchmark.tasks import EmbeddedTask
from segcal.demo.embedded import EmbeddedCases, open_embedded
from segcal.demo.ensembles import load_member, predict
from segcal.demo.tasks import TASKS
from segcal.errors import InputError
from segcal.types import IGNORED

TASK = EmbeddedTask("r", "roads", cases=2, first=3, members=2)


@pytest.mark.parametrize("pooling", ["single", "mean_logits", "mean_probs"])
def test_cases_are_those_of_the_task_with_and_without_a_cache(pooling, tmp_path):
    wanted = EmbeddedCases("roads", [3, 4], pooling, members=2).read("roads_0003")
    for cache in (None, tmp_path, tmp_path):  # made, made and kept, read
        found = open_embedded(TASK, pooling, cache=cache).cases.read("roads_0003")
        assert torch.equal(found.logits, wanted.logits)
        assert torch.equal(found.labels, wanted.labels)
        assert torch.equal(found.image, wanted.image)
        assert found.spacing == wanted.spacing


def test_a_case_is_predicted_once_for_all_poolings(tmp_path, monkeypatch):
    open_embedded(TASK, "single", cache=tmp_path).cases.read("roads_0003")
    monkeypatch.setattr("segcal.demo.embedded.predict", lambda *_: pytest.fail("it is kept"))
    open_embedded(TASK, "mean_probs", cache=tmp_path).cases.read("roads_0003")


def test_of_cases_that_are_read_once_nothing_is_kept(tmp_path):
    open_embedded(TASK, "single", cache=tmp_path, once=True).cases.read("roads_0003")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("pooling", ["single", "mean_logits"])
def test_its_model_predicts_what_its_cases_hold_and_any_other_image(pooling):
    opened = open_embedded(TASK, pooling)
    case = opened.cases.read("roads_0003")
    assert torch.equal(opened.model(case.image), case.logits)
    assert opened.model(case.image[:, :48, :64]).shape == (2, 48, 64)


def test_a_corrupted_copy_has_the_same_labels_and_other_logits():
    clean = open_embedded(TASK, "single").cases.read("roads_0003")
    strong = EmbeddedTask("s", "roads", cases=2, first=3, members=2, corruption="strong")
    found = open_embedded(strong, "single").cases.read("roads_0003")
    assert torch.equal(found.labels, clean.labels)
    assert not torch.equal(found.logits, clean.logits)


def test_background_is_what_the_task_says_unless_declared():
    assert open_embedded(TASK, "single").background is True
    assert open_embedded(EmbeddedTask("s", "streets"), "single").background is False
    assert open_embedded(EmbeddedTask("s", "streets", background=True), "single").background is True


def test_it_travels_to_another_process_without_its_networks():
    cases = open_embedded(TASK, "single").cases
    small = len(pickle.dumps(cases))
    cases.read("roads_0003")
    assert len(pickle.dumps(cases)) == small


def test_what_is_not_there_is_named():
    with pytest.raises(InputError, match="no pooling is named 'median'"):
        EmbeddedCases("roads", [0], "median")
    with pytest.raises(InputError, match="no embedded task is named 'sea'"):
        open_embedded(EmbeddedTask("s", "sea"), "single")
    with pytest.raises(InputError, match="members is 9, but 1 to 5 networks are shipped"):
        open_embedded(EmbeddedTask("s", "roads", members=9), "single")
    with pytest.raises(InputError, match="case_id is 'roads_0009', but there is no such case among 2"):
        open_embedded(TASK, "single").cases.read("roads_0009")


def test_a_case_is_the_sample_with_the_mean_of_its_members():
    cases = EmbeddedCases("tumour", [3], "mean_logits", members=2)
    case, sample = cases.read("tumour_0003"), TASKS["tumour"].sample(3)
    expected = sum(predict(load_member("tumour", member), sample.image) for member in (0, 1)) / 2
    torch.testing.assert_close(case.logits, expected)
    assert np.array_equal(case.labels, sample.labels)
    assert np.array_equal(case.mask, sample.mask)
    assert np.array_equal(case.image, sample.image)
    assert (case.labels[~case.mask] == IGNORED).all()
    assert case.spacing == TASKS["tumour"].spacing
    assert cases.class_names == TASKS["tumour"].class_names


def test_mean_probabilities_are_normalised_and_single_is_the_first_network():
    log_probs = EmbeddedCases("roads", [1], "mean_probs", members=3).read("roads_0001").logits
    torch.testing.assert_close(log_probs.logsumexp(0), torch.zeros(TASKS["roads"].space), atol=1e-5, rtol=0)
    single = EmbeddedCases("roads", [1], "single").read("roads_0001").logits
    assert torch.equal(single, predict(load_member("roads", 0), TASKS["roads"].sample(1).image))


def test_cases_split_like_any_others():
    cases = EmbeddedCases("roads", range(10), "mean_logits", members=1)
    cal, val, test = cases.split(cal=4, val=2, seed=0)
    assert [len(part) for part in (cal, val, test)] == [4, 2, 4]
    assert sorted(cal.ids + val.ids + test.ids) == sorted(cases.ids)
    assert cal.num_classes == 2
