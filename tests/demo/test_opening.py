"""Embedded tasks of a protocol: the same cases as everywhere, predicted once."""

import pickle

import pytest
import torch

from segcal.benchmark.tasks import EmbeddedTask
from segcal.demo.cases import EmbeddedCases
from segcal.demo.opening import open_embedded
from segcal.errors import InputError

TASK = EmbeddedTask("r", "roads", cases=2, first=3, members=2)


@pytest.mark.parametrize("pooling", ["single", "mean_logits", "mean_probs"])
def test_cases_are_those_of_the_task_with_and_without_a_cache(pooling, tmp_path):
    wanted = EmbeddedCases("roads", [3, 4], pooling, members=2).read("roads_0003")
    for cache in (None, tmp_path, tmp_path):  # made, made and kept, read
        found = open_embedded(TASK, pooling, cache).cases.read("roads_0003")
        assert torch.equal(found.logits, wanted.logits)
        assert torch.equal(found.labels, wanted.labels)
        assert torch.equal(found.image, wanted.image)
        assert found.spacing == wanted.spacing


def test_a_case_is_predicted_once_for_all_poolings(tmp_path, monkeypatch):
    open_embedded(TASK, "single", tmp_path).cases.read("roads_0003")
    monkeypatch.setattr("segcal.demo.opening.predict", lambda *_: pytest.fail("it is kept"))
    open_embedded(TASK, "mean_probs", tmp_path).cases.read("roads_0003")


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
    with pytest.raises(InputError, match="no embedded task is named 'sea'"):
        open_embedded(EmbeddedTask("s", "sea"), "single")
    with pytest.raises(InputError, match="has members = 9, but 1 to 5 networks are shipped"):
        open_embedded(EmbeddedTask("s", "roads", members=9), "single")
    with pytest.raises(InputError, match="there is no such case among 2"):
        open_embedded(TASK, "single").cases.read("roads_0009")
