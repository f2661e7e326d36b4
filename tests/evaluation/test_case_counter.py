import numpy as np
import pytest

from segcal.evaluation.case_counter import pooled_replicates
from segcal.resample import Draws
from segcal.statistics.reliability import Curve


@pytest.mark.parametrize("groups", [5, list("bcabc")])
def test_pooled_replicates_add_the_tables_of_the_drawn_groups(groups):
    rng = np.random.default_rng(0)
    parts = [Curve(rng.integers(1, 9, 4), rng.integers(0, 5, 4), rng.random(4)) for _ in range(5)]
    draws = Draws([groups], replicates=50)
    found = pooled_replicates(parts, lambda curve: float(curve.confidence.sum() / curve.count.sum()), draws)
    for weights, value in zip(draws.weights, found, strict=True):
        drawn = [part for part, group in zip(parts, draws.index[0], strict=True) for _ in range(int(weights[group]))]
        assert value == pytest.approx(sum(p.confidence.sum() for p in drawn) / sum(p.count.sum() for p in drawn))
