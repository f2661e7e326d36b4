import json

import pytest

from segcal import FitConfig
from segcal.errors import InputError
from segcal.fitting.config import check_config


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"voxels": 0}, "voxels is 0, but a number between 1 and"),
        ({"voxels": "some"}, "voxels is 'some', but a whole number or 'all' is needed. Leave it out for the default"),
        ({"voxels": 2.5}, r"voxels is 2\.5, but a whole number"),
        ({"voxels": True}, "voxels is True, but a whole number"),
        ({"method": "adam"}, "method is 'adam', but 'exact' or 'paper' is needed"),
        ({"lam": -1.0}, r"lam is -1\.0, but a number of at least 0 is needed. Use None to have it chosen"),
        ({"mu": float("nan")}, "mu is nan, but a finite number is needed"),
        ({"lam": float("inf")}, "lam is inf, but a finite number is needed"),
        ({"learning_rate": -1e-3}, r"learning_rate is -0\.001, but a number"),
        ({"tol": 0.0}, r"tol is 0\.0, but a number between 1e-14 and 1 is needed"),
        ({"tol": float("nan")}, "tol is nan, but a finite number is needed"),
        ({"memory": 1000}, "memory is 1000, but a number between 1.04858e"),
        ({"trials": 0}, "trials is 0, but a number between 1 and"),
        ({"max_steps": 0}, "max_steps is 0, but a number between 1 and"),
        ({"seed": -1}, "seed is -1, but a number between 0 and"),
        ({"checkpoint": 3}, "checkpoint is 3, but text is needed"),
    ],
)
def test_options_out_of_range_are_refused(options, text):
    with pytest.raises(InputError, match=text):
        FitConfig(**options)


def test_an_option_that_does_not_exist_is_refused():
    with pytest.raises(TypeError, match="lambda_"):
        FitConfig(lambda_=1.0)


def test_the_papers_procedure_is_a_config_too():
    config = FitConfig.paper(seed=3)
    assert (config.method, config.trials, config.seed) == ("paper", 20, 3)


def test_a_config_is_plain_data():
    config = FitConfig(lam=0.1, voxels="all")
    assert FitConfig(**json.loads(json.dumps(config.to_dict()))) == config


def test_settings_of_another_kind_are_refused():
    with pytest.raises(InputError, match=r"config is dict, but a FitConfig is needed. Write segcal.FitConfig\("):
        check_config({"voxels": 3})
    assert check_config(None) == FitConfig()
