import math

import numpy as np
import pytest
import torch
from scipy.optimize import root

from segcal.metrics.sampled import (
    cox_intercept,
    cox_slope,
    kernel_calibration_error,
    kernel_density_error,
    spiegelhalter_z,
)
from segcal.statistics.voxel_sample import sample_voxels


def make_pairs(seed=0, n=23, classes=4):
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
    sample, probs, truth = make_pairs()
    assert kernel_calibration_error(sample, bandwidth) == pytest.approx(kce_by_pairs(probs, truth, bandwidth), abs=1e-9)


@pytest.mark.parametrize("bandwidth", [0.02, 0.5])
def test_the_kernel_density_error_is_that_of_a_loop_over_pairs(bandwidth):
    sample, probs, truth = make_pairs(1)
    assert kernel_density_error(sample, bandwidth) == pytest.approx(kde_by_pairs(probs, truth, bandwidth), abs=1e-9)


def test_one_voxel_has_no_pair():
    sample = sample_voxels(torch.tensor([[1.0], [0.0]]), torch.tensor([0]))
    assert math.isnan(kernel_calibration_error(sample))
    assert math.isnan(kernel_density_error(sample))


# Made with calzone-tool 0.1.0 (cox_regression_analysis, spiegelhalter_z_test) from these confidences and answers.
CONFIDENCE = np.array([0.55, 0.62, 0.71, 0.78, 0.83, 0.9, 0.94, 0.97, 0.99, 0.66, 0.88, 0.96])
RIGHT = np.array([0, 1, 0, 1, 1, 0, 1, 1, 1, 1, 1, 0])
CALZONE = {"slope": 0.30702189788468337, "intercept": 0.12475086299131131, "z": 2.0646108188737653}


def of(confidence, right):
    """Return a sample with these confidences: two classes, of which the first is predicted."""
    logits = torch.from_numpy(np.stack([np.log(confidence) - np.log1p(-confidence), 0 * confidence]))
    return sample_voxels(logits, torch.from_numpy(1 - right.astype(np.int64)))


def make(seed=0, n=400, slope=0.6):
    rng = np.random.default_rng(seed)
    p = 1 / (1 + np.exp(-rng.gamma(2.0, 1.5, n)))
    return p, (rng.random(n) < 1 / (1 + np.exp(-slope * np.log(p / (1 - p)) - 0.2))).astype(int)


def test_small_sets_agree_with_calzone():
    sample = of(CONFIDENCE, RIGHT)
    assert cox_slope(sample) == pytest.approx(CALZONE["slope"], abs=1e-9)
    assert cox_intercept(sample) == pytest.approx(CALZONE["intercept"], abs=1e-9)
    assert spiegelhalter_z(sample) == pytest.approx(CALZONE["z"], abs=1e-9)


@pytest.mark.parametrize("seed", range(2))
def test_slope_and_intercept_solve_the_score_equations(seed):
    p, right = make(seed)
    x = np.log(p / (1 - p))

    def score(beta):
        residual = right - 1 / (1 + np.exp(-beta[0] - beta[1] * x))
        return [residual.sum(), (residual * x).sum()]

    found = root(score, [0.0, 1.0], tol=1e-13).x
    sample = of(p, right)
    assert (cox_intercept(sample), cox_slope(sample)) == pytest.approx(tuple(found), abs=1e-9)


def test_spiegelhalter_is_its_formula_voxel_by_voxel():
    p, right = make(4)
    above = sum((r - q) * (1 - 2 * q) for q, r in zip(p, right, strict=True))
    below = sum((1 - 2 * q) ** 2 * q * (1 - q) for q in p)
    assert spiegelhalter_z(of(p, right)) == pytest.approx(above / math.sqrt(below), abs=1e-9)


@pytest.mark.parametrize("right", [[1, 1, 1], [0, 0, 0], [0, 0, 1], [1, 0, 0]])
def test_without_a_finite_fit_there_is_no_slope(right):
    sample = of(np.array([0.6, 0.7, 0.8]), np.array(right))
    assert math.isnan(cox_slope(sample))
    assert math.isnan(cox_intercept(sample))


def test_confidence_of_one_half_alone_has_no_z():
    assert math.isnan(spiegelhalter_z(of(np.array([0.5]), np.array([1]))))
