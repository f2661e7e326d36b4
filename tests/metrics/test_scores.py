import math
from itertools import permutations

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from segcal.metrics import METRICS
from segcal.metrics.scores import (
    area_under_error_roc,
    area_under_generalised_risk_coverage,
    area_under_risk_coverage,
)
from segcal.statistics import count_logits
from segcal.statistics.additive import Ranking


def test_an_offset_for_each_voxel_is_what_it_measures():
    offset = torch.tensor([0.0, 1.0, 5.0, -3.0], dtype=torch.float64)
    tables = count_logits(torch.zeros(3, 4, dtype=torch.float64) + offset, torch.zeros(4, dtype=torch.int64)).tables
    assert METRICS["free_energy_std"](tables) == pytest.approx(float(offset.std(correction=0)))


def test_the_padding_artefact_of_the_published_table():
    # One-hot padding taken for logits beside a brain whose free energy is 19.6 gives a spread of 8.77.
    voxels, padded = 1000, 571
    logits = torch.zeros(5, voxels, dtype=torch.float64)
    logits[0, :padded] = 1.0
    logits[0, padded:] = 19.6
    logits[1:, padded:] = -60.0
    tables = count_logits(logits, torch.zeros(voxels, dtype=torch.int64)).tables
    assert METRICS["free_energy_std"](tables) == pytest.approx(8.77, abs=0.02)
    assert METRICS["ece"](tables) == pytest.approx(0.340, abs=1e-3)
    assert METRICS["nll"](tables) == pytest.approx(0.571 * 0.9048324, abs=1e-5)


def aurc_sorted(confidence, wrong):
    order = np.argsort(-confidence, kind="stable")
    return float((np.cumsum(wrong[order]) / np.arange(1, len(order) + 1)).mean())


def test_distinct_bins_are_an_exact_ranking():
    wrong = np.array([0, 1, 0, 0, 1, 1])
    assert area_under_risk_coverage(Ranking(np.ones(6, int), wrong)) == pytest.approx(aurc_sorted(-np.arange(6), wrong))


def test_a_tie_stands_for_the_mean_over_its_orders():
    rest = (0, 1)
    values = [aurc_sorted(-np.arange(5), np.array([*rest, *order])) for order in permutations((0, 1, 1))]
    assert area_under_risk_coverage(Ranking(np.array([1, 1, 3]), np.array([0, 1, 2]))) == pytest.approx(np.mean(values))


@pytest.mark.parametrize("scale", [1.0, 4.0, 12.0])
def test_the_binned_value_is_near_the_exact_one(scale):
    rng = np.random.default_rng(0)
    logits = rng.normal(scale=scale, size=(4, 20_000))
    q = np.exp(logits - logits.max(0))
    confidence = 1 / q.sum(0)
    wrong = rng.random(20_000) > confidence  # calibrated
    labels = np.where(wrong, (logits.argmax(0) + 1) % 4, logits.argmax(0))
    found = METRICS["aurc"](count_logits(torch.from_numpy(logits), torch.from_numpy(labels)).tables)
    doubt = (q.sum(0) - 1) / q.sum(0)
    assert found == pytest.approx(aurc_sorted(-doubt, wrong), rel=5e-3)


def test_nothing_has_no_ranking_and_no_errors_no_risk():
    assert math.isnan(area_under_risk_coverage(Ranking(np.zeros(3, int), np.zeros(3, int))))
    assert area_under_risk_coverage(Ranking(np.array([3, 4]), np.zeros(2, int))) == 0


def augrc_sorted(wrong):
    """By trapezoids, through the origin, of voxels from the most to the least confident."""
    voxels, area, errors = len(wrong), 0.0, 0
    for one in wrong:
        area += (errors + errors + one) / 2 / voxels / voxels
        errors += one
    return area


def test_the_generalised_area_is_that_of_sorted_voxels():
    wrong = np.array([0, 1, 0, 0, 1, 1, 0])
    ranking = Ranking(np.ones(7, int), wrong)
    assert area_under_generalised_risk_coverage(ranking) == pytest.approx(augrc_sorted(wrong))
    # torch-uncertainty 0.13 leaves the first trapezoid out and divides by the coverage that is left.
    curve = np.cumsum(wrong) / 7
    theirs = sum(curve[k] + curve[k + 1] for k in range(6)) / 2 / 7 / (1 - 1 / 7)
    ours = area_under_generalised_risk_coverage(ranking)
    assert ours == pytest.approx(theirs * (1 - 1 / 7) + wrong[0] / (2 * 7 * 7))


def test_a_tie_of_the_generalised_area_stands_for_the_mean_over_its_orders():
    values = [augrc_sorted((0, 1, *order, 1)) for order in permutations((0, 1, 1, 0))]
    ranking = Ranking(np.array([1, 1, 4, 1]), np.array([0, 1, 2, 1]))
    assert area_under_generalised_risk_coverage(ranking) == pytest.approx(np.mean(values))


def test_the_generalised_area_is_that_of_the_roc_and_the_accuracy():
    rng = np.random.default_rng(5)
    count = rng.integers(0, 9, 30)
    ranking = Ranking(count, rng.binomial(count, np.linspace(0.05, 0.7, 30)))
    right = 1 - ranking.wrong.sum() / count.sum()
    by_roc = right * (1 - right) * (1 - area_under_error_roc(ranking)) + (1 - right) ** 2 / 2
    assert area_under_generalised_risk_coverage(ranking) == pytest.approx(by_roc)
    assert math.isnan(area_under_generalised_risk_coverage(Ranking(np.zeros(3, int), np.zeros(3, int))))
    assert area_under_generalised_risk_coverage(Ranking(count, np.zeros(30, int))) == 0


@pytest.mark.parametrize("scale", [1.0, 4.0, 12.0])
def test_the_binned_generalised_area_is_near_that_of_every_voxel(scale):
    rng = np.random.default_rng(1)
    logits = rng.normal(scale=scale, size=(3, 20_000))
    q = np.exp(logits - logits.max(0))
    doubt = (q.sum(0) - 1) / q.sum(0)
    wrong = rng.random(20_000) < doubt
    labels = np.where(wrong, (logits.argmax(0) + 1) % 3, logits.argmax(0))
    found = METRICS["augrc"](count_logits(torch.from_numpy(logits), torch.from_numpy(labels)).tables)
    assert found == pytest.approx(augrc_sorted(wrong[np.argsort(doubt, kind="stable")].astype(int)), rel=5e-3)


def test_the_area_under_the_roc_of_errors_is_that_of_scikit_learn():
    rng = np.random.default_rng(3)
    count = rng.integers(0, 4, 40)
    wrong = rng.binomial(count, np.linspace(0.1, 0.9, 40))
    doubt, truth = (
        np.repeat(np.arange(40), count),
        np.concatenate([[1] * w + [0] * (n - w) for n, w in zip(count, wrong, strict=True)]),
    )
    assert area_under_error_roc(Ranking(count, wrong)) == pytest.approx(roc_auc_score(truth, doubt), abs=1e-12)
    assert math.isnan(area_under_error_roc(Ranking(count, count)))
    assert math.isnan(area_under_error_roc(Ranking(count, 0 * count)))
