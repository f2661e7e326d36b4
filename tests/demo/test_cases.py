import numpy as np
import pytest
import torch

from segcal.demo.cases import EmbeddedCases
from segcal.demo.ensembles import load_member, predict
from segcal.demo.tasks import TASKS
from segcal.errors import InputError
from segcal.types import IGNORED


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


def test_wrong_arguments_are_refused():
    with pytest.raises(InputError, match="members is 6, but 1 to 5 networks are shipped"):
        EmbeddedCases("roads", [0], "mean_logits", members=6)
    with pytest.raises(InputError, match="no pooling is named 'median'"):
        EmbeddedCases("roads", [0], "median")
    with pytest.raises(InputError, match="no embedded task is named 'cells'"):
        EmbeddedCases("cells", [0], "mean_logits")
    with pytest.raises(InputError, match="case_id is 'roads_0007', but there is no such case among 1"):
        EmbeddedCases("roads", [0], "single").read("roads_0007")
