import pytest
import torch

from segcal.errors import InputError
from segcal.losses import CrossEntropy
from segcal.losses.base import check_positive, check_reduction


def test_weights_must_be_one_non_negative_factor_a_class():
    with pytest.raises(InputError, match=r"class_weights has shape \(2,\) and dtype int64"):
        CrossEntropy(class_weights=torch.tensor([1, 2]))
    with pytest.raises(InputError, match="one non-negative floating-point factor a class"):
        CrossEntropy(class_weights=torch.tensor([1.0, -2.0]))
    with pytest.raises(InputError, match="class_weights has 2 entries, but the logits have 3 classes"):
        CrossEntropy(class_weights=torch.ones(2))(torch.zeros(1, 3, 4), torch.zeros(1, 4, dtype=torch.int64))


def test_weights_are_no_parameters_and_move_with_the_module():
    loss = CrossEntropy(class_weights=torch.ones(3)).to(torch.float64)
    assert not list(loss.parameters())
    assert loss.class_weights.dtype == torch.float64


def test_unknown_reductions_are_refused():
    with pytest.raises(InputError, match="reduction is 'avg', but mean, sum or none is needed"):
        check_reduction("avg")


def test_factors_are_not_negative():
    assert check_positive(0, "smooth") == 0.0
    with pytest.raises(InputError, match="smooth is -1, but a number of at least 0 is needed"):
        check_positive(-1, "smooth")
    with pytest.raises(InputError, match="smooth is nan"):
        check_positive(float("nan"), "smooth")
