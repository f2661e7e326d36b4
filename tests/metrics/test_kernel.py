import math

import numpy as np
import pytest
import torch

from segcal.metrics.kernel import kernel_calibration_error, kernel_density_error
from segcal.statistics.voxel_sample import sample_voxels


def make(seed=0, n=23, classes=4):
    rng = np.random.default_rng(seed)
    z, labels = 2 * rng.normal(size=(classes, n)), rng.integers(0, classes, n)
    probs = (np.exp(z) / np.exp(z).sum(0)).T
    return sample_voxels(torch.from_numpy(z), torch.from_numpy(labels)), probs, np.eye(classes)[labels]


def kce_by_pairs(probs, truth, bandwidth):
    """As CalibrationMeasures of MetricsReloaded writes it: a loop over pairs."""
    total, n = 0.0, len(probs)
    for i in range(n):
        for j in range(i):
            kernel = math.exp(-math.dist(probs[i], probs[j]) / bandwidth)
            total += kernel * float((truth[i] - probs[i]) @ (truth[j] - probs[j]))
    return total / (n * (n - 1) / 2)


def kde_by_pairs(probs, truth, bandwidth):
    errors = []
    for j in range(len(probs)):
        above, below = np.zeros(probs.shape[1]), 0.0
        for i in range(len(probs)):
            if i != j:
                alpha = probs[i] / bandwidth + 1
                density = math.gamma(alpha.sum()) / math.prod(map(math.gamma, alpha))
                density *= math.prod(probs[j] ** (alpha - 1))
                above, below = above + density * truth[i], below + density
        errors.append(math.dist(above / below, probs[j]))
    return float(np.mean(errors))


@pytest.mark.parametrize("bandwidth", [0.1, 0.4])
def test_the_kernel_error_is_that_of_a_loop_over_pairs(bandwidth):
    sample, probs, truth = make()
    assert kernel_calibration_error(sample, bandwidth) == pytest.approx(kce_by_pairs(probs, truth, bandwidth), abs=1e-9)


@pytest.mark.parametrize("bandwidth", [0.02, 0.5])
def test_the_kernel_density_error_is_that_of_a_loop_over_pairs(bandwidth):
    sample, probs, truth = make(1)
    assert kernel_density_error(sample, bandwidth) == pytest.approx(kde_by_pairs(probs, truth, bandwidth), abs=1e-9)


def test_calibrated_voxels_have_no_kernel_error_on_average_and_others_have():
    rng = np.random.default_rng(2)
    z = 2 * rng.normal(size=(3, 1500))
    labels = (z + rng.gumbel(size=z.shape)).argmax(0)
    honest = sample_voxels(torch.from_numpy(z), torch.from_numpy(labels))
    boastful = sample_voxels(torch.from_numpy(3 * z), torch.from_numpy(labels))
    assert abs(kernel_calibration_error(honest)) < 1e-3 < 0.005 < kernel_calibration_error(boastful)
    assert kernel_density_error(honest) < kernel_density_error(boastful)


def test_one_voxel_has_no_pair():
    sample = sample_voxels(torch.tensor([[1.0], [0.0]]), torch.tensor([0]))
    assert math.isnan(kernel_calibration_error(sample))
    assert math.isnan(kernel_density_error(sample))
