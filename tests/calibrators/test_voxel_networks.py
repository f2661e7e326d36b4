"""The networks of single voxels: PTS and IOP against plain Python, and what both have in common."""

import math

import numpy as np
import pytest
import torch

from segcal import make_calibrator
from segcal.calibrators.voxel_networks import Perceptron

AT_ONE = math.log(math.exp(1 - 1e-3) - 1)  # definitions 1.4


def through(network, values):
    """Linear layers with ReLU between them, in NumPy."""
    for number, (weight, bias) in enumerate(zip(network.weights, network.biases, strict=True)):
        values = weight.detach().numpy() @ values + bias.detach().numpy()
        values = np.maximum(values, 0) if number < len(network.weights) - 1 else values
    return 1e-3 + np.log1p(np.exp(values + AT_ONE))


def tempered(logits, network, largest):
    """Probabilities of one voxel."""
    shifted = np.array(logits) - max(logits)
    temperature = through(network, np.sort(shifted - math.log(np.exp(shifted).sum()))[::-1][:largest])
    return np.exp(shifted / temperature) / np.exp(shifted / temperature).sum()


def by_gaps(logits, factors):
    """Scores of one voxel with the smallest class at zero: definitions 9."""
    order = sorted(range(len(logits)), key=lambda k: (-logits[k], k))
    scores = [0.0] * len(logits)
    for place in range(len(logits) - 2, -1, -1):
        gap = logits[order[place]] - logits[order[place + 1]]
        scores[order[place]] = scores[order[place + 1]] + factors[place] * gap
    return scores


def with_factors(calibrator, factors):
    """Set the network so that it returns these factors, whatever it sees."""
    raw = [math.log(math.expm1(factor - 1e-3)) - AT_ONE for factor in factors]
    calibrator.requires_grad_(False).network.biases[-1].copy_(torch.tensor(raw, dtype=torch.float64))
    return calibrator


@pytest.mark.parametrize(("classes", "largest"), [(2, 10), (5, 10), (5, 3), (12, 10)])
def test_pts_is_the_plain_formula(classes, largest, voxels, randomise):
    calibrator = randomise(make_calibrator("pts", classes, largest=largest))
    logits = voxels(classes, 30)
    expected = [tempered(row, calibrator.network, largest) for row in logits.tolist()]
    np.testing.assert_allclose(calibrator(logits).exp().detach().numpy(), expected, rtol=1e-9)


@pytest.mark.parametrize("classes", [2, 5, 20])
def test_iop_is_the_plain_formula(classes, voxels, randomise):
    calibrator = randomise(make_calibrator("iop", classes, hidden=[6]))
    logits = voxels(classes, 30)
    for row, found in zip(logits.tolist(), calibrator.scores(logits).tolist(), strict=True):
        ordered = np.sort(row)[::-1]
        expected = by_gaps(row, through(calibrator.network, ordered[:-1] - ordered[1:]))
        np.testing.assert_allclose(np.array(found) - min(found), expected, rtol=1e-9, atol=1e-9)


def test_the_checked_numbers_of_the_definitions():
    logits = torch.tensor([[1.0, 3.0, 0.5]], dtype=torch.float64)
    assert by_gaps([1.0, 3.0, 0.5], [2.0, 0.5]) == [0.25, 4.25, 0.0]
    made, new = with_factors(make_calibrator("iop", 3), [2.0, 0.5]), make_calibrator("iop", 3)
    for calibrator, expected in ((made, [[0.25, 4.25, 0.0]]), (new, [[0.5, 2.5, 0.0]])):
        scores = calibrator.scores(logits).detach()
        np.testing.assert_allclose(scores - scores.min(), expected, rtol=1e-12, atol=1e-12)


def test_gaps_stay_gaps_and_ties_stay_ties_in_float32(randomise):
    calibrator = randomise(make_calibrator("iop", 6))
    logits = torch.randn(5000, 6, generator=torch.Generator().manual_seed(0)).round(decimals=1)
    with torch.no_grad():
        scores = calibrator.scores(logits)
    order = logits.argsort(dim=1, descending=True, stable=True)
    before, after = logits.gather(1, order).diff(dim=1), scores.gather(1, order).diff(dim=1)
    assert bool(((before == 0) == (after == 0)).all())
    assert bool((after <= 0).all())


def test_one_scale_for_every_hidden_unit_is_not_identifiable():
    network = Perceptron(3, (4, 5), 2, seed=0).requires_grad_(False)
    assert network.redundant == 9
    values = torch.randn(7, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    network.weights[-1].fill_(0.3)
    before = network(values)
    network.weights[0][1] *= 3
    network.biases[0][1] *= 3
    network.weights[1][:, 1] /= 3
    torch.testing.assert_close(network(values), before, rtol=1e-12, atol=1e-12)
