import numpy as np
import pytest
import torch


@pytest.fixture
def voxels():
    """Float64 logits (voxels, classes) in which every class wins somewhere."""

    def make(classes, count=60, seed=0):
        return torch.as_tensor(3 * np.random.default_rng(seed).normal(size=(count, classes)))

    return make


@pytest.fixture
def fiducio():
    """The library of the paper's authors, as an independent answer."""
    return pytest.importorskip("fiducio")
