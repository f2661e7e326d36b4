import pytest
import torch

from segcal.errors import InputError
from segcal.training import TrainConfig


@pytest.mark.parametrize("name", ["epochs", "batch_size", "validate_every"])
def test_counts_are_positive(name):
    with pytest.raises(InputError, match=f"{name} is 0, but at least 1 is needed"):
        TrainConfig(**{name: 0})


@pytest.mark.parametrize("name", ["learning_rate", "gradient_clip"])
def test_rates_are_more_than_zero(name):
    with pytest.raises(InputError, match=f"{name} is nan, but more than 0 is needed"):
        TrainConfig(**{name: float("nan")})


def test_the_optimizer_is_one_of_two():
    with pytest.raises(InputError, match="optimizer is 'lion', but adam or sgd is needed"):
        TrainConfig(optimizer="lion")


def test_mixed_precision_on_a_cpu_is_bfloat16():
    assert TrainConfig().amp_dtype() == torch.bfloat16
