import numpy as np
import pytest

from segcal.evaluation.case_counter import pooled_replicates
from segcal.statistics.reliability import Curve
from segcal.summary import Draws


def test_pooled_replicates_add_the_tables_of_the_drawn_cases():
    rng = np.random.default_rng(0)
    parts = [Curve(rng.integers(1, 9, 4), rng.integers(0, 5, 4), rng.random(4)) for _ in range(5)]
    draws = Draws([5], replicates=50)
    found = pooled_replicates(parts, lambda curve: float(curve.confidence.sum() / curve.count.sum()), draws)
    for weights, value in zip(draws.weights[0], found, strict=True):
        drawn = [part for part, n in zip(parts, weights, strict=True) for _ in range(int(n))]
        assert value == pytest.approx(sum(p.confidence.sum() for p in drawn) / sum(p.count.sum() for p in drawn))
