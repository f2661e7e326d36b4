import numpy as np
import pytest
import torch
from segcal.studies.repredicted_cases import RepredictedCases

from segcal.cases import ArrayCases
from segcal.errors import InputError

RNG = np.random.default_rng(0)
LOGITS, LABELS, IMAGE = RNG.normal(size=(3, 4, 5)), RNG.integers(3, size=(4, 5)), RNG.random((1, 4, 5))


def test_logits_come_from_the_model_and_the_rest_from_the_case():
    cases = ArrayCases([LOGITS], [LABELS], images=[IMAGE], ids=["a"])
    case = RepredictedCases(cases, lambda image: image.repeat(3, 1, 1)).read("a")
    assert torch.equal(case.logits, torch.as_tensor(IMAGE).repeat(3, 1, 1))
    assert torch.equal(case.labels, cases.read("a").labels)


def test_a_case_without_an_image_is_refused():
    cases = ArrayCases([LOGITS], [LABELS], ids=["a"])
    with pytest.raises(InputError, match="case 'a' has no image, but a model needs one"):
        RepredictedCases(cases, lambda image: image).read("a")


def test_a_model_of_another_size_is_refused():
    cases = ArrayCases([LOGITS], [LABELS], images=[IMAGE], ids=["a"])
    with pytest.raises(InputError, match=r"the model returns shape \(1, 4, 5\) for case 'a', but its logits have"):
        RepredictedCases(cases, lambda image: image).read("a")
