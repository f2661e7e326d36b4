import numpy as np
import pytest
import torch

from segcal import make_calibrator


@pytest.fixture
def voxels():
    """Float64 logits (voxels, classes) in which every class wins somewhere."""

    def make(classes, count=60, seed=0):
        return torch.as_tensor(3 * np.random.default_rng(seed).normal(size=(count, classes)))

    return make


@pytest.fixture
def filled():
    """A calibrator with given parameters and tables, which nobody trains."""

    def fill(name, classes, options=None, **values):
        calibrator = make_calibrator(name, classes, **(options or {})).requires_grad_(False)
        for key, value in values.items():
            getattr(calibrator, key).copy_(torch.as_tensor(value, dtype=torch.float64))
        return calibrator

    return fill


@pytest.fixture
def fiducio():
    """The library of the paper's authors, as an independent answer."""
    return pytest.importorskip("fiducio")
