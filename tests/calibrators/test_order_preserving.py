import math

import numpy as np
import pytest
import torch

from segcal import make_calibrator


def plain(logits, factors):
    """Scores of one voxel with the smallest class at zero: definitions 9."""
    order = sorted(range(len(logits)), key=lambda k: (-logits[k], k))
    scores = [0.0] * len(logits)
    for place in range(len(logits) - 2, -1, -1):
        gap = logits[order[place]] - logits[order[place + 1]]
        scores[order[place]] = scores[order[place + 1]] + factors[place] * gap
    return scores


def with_factors(calibrator, factors):
    """Set the network so that it returns these factors, whatever it sees."""
    raw = [math.log(math.expm1(factor - 1e-3)) - math.log(math.exp(1 - 1e-3) - 1) for factor in factors]
    with torch.no_grad():
        calibrator.network.biases[-1].copy_(torch.tensor(raw, dtype=torch.float64))
    return calibrator


def test_the_checked_numbers_of_the_definitions():
    calibrator = with_factors(make_calibrator("iop", 3), [2.0, 0.5])
    logits = torch.tensor([[1.0, 3.0, 0.5]], dtype=torch.float64)
    scores = calibrator.scores(logits).detach()
    torch.testing.assert_close(
        scores - scores.min(), torch.tensor([[0.25, 4.25, 0.0]]).double(), rtol=1e-12, atol=1e-12
    )
    assert plain([1.0, 3.0, 0.5], [2.0, 0.5]) == [0.25, 4.25, 0.0]
    new = make_calibrator("iop", 3).scores(logits).detach()
    torch.testing.assert_close(new - new.min(), torch.tensor([[0.5, 2.5, 0.0]]).double(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("classes", [2, 5, 20])
def test_it_is_the_plain_formula(classes, voxels, randomise):
    calibrator = randomise(make_calibrator("iop", classes, hidden=[6]))
    weights = [weight.detach().numpy() for weight in calibrator.network.weights]
    biases = [bias.detach().numpy() for bias in calibrator.network.biases]
    logits = voxels(classes, 30)
    for row, found in zip(logits.tolist(), calibrator.scores(logits).tolist(), strict=True):
        ordered = np.sort(row)[::-1]
        hidden = np.maximum(weights[0] @ (ordered[:-1] - ordered[1:]) + biases[0], 0)
        raw = weights[1] @ hidden + biases[1]
        expected = np.array(plain(row, 1e-3 + np.log1p(np.exp(raw + math.log(math.exp(1 - 1e-3) - 1)))))
        np.testing.assert_allclose(np.array(found) - min(found), expected, rtol=1e-9, atol=1e-9)


def test_gaps_stay_gaps_and_ties_stay_ties_in_float32(randomise):
    calibrator = randomise(make_calibrator("iop", 6))
    logits = torch.randn(5000, 6, generator=torch.Generator().manual_seed(0)).round(decimals=1)
    with torch.no_grad():
        scores = calibrator.scores(logits)
    order = logits.argsort(dim=1, descending=True, stable=True)
    before, after = logits.gather(1, order).diff(dim=1), scores.gather(1, order).diff(dim=1)
    assert bool(((before == 0) == (after == 0)).all())
    assert bool((after <= 0).all())


def test_the_names_of_the_classes_do_not_matter(voxels, randomise):
    calibrator = randomise(make_calibrator("iop", 5))
    logits, order = voxels(5), torch.tensor([3, 0, 4, 2, 1])
    torch.testing.assert_close(calibrator(logits[:, order]), calibrator(logits)[:, order], rtol=0, atol=1e-12)


def test_a_constant_factor_is_a_temperature(voxels):
    calibrator = with_factors(make_calibrator("iop", 5), [0.4] * 4)
    logits = voxels(5)
    torch.testing.assert_close(calibrator(logits).detach(), torch.log_softmax(0.4 * logits, 1), rtol=0, atol=1e-12)
