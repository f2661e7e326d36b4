"""Quantiles, p-values and risk control, against counting, against crepes, and by re-division."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from segcal.errors import InputError
from segcal.trust.conformal import (
    check_level,
    draws_needed,
    first_controlled,
    mean_over_draws,
    p_value,
    quantile,
    weights,
)

# On a machine that is busy an example may take long.
SLOWLY = settings(suppress_health_check=[HealthCheck.too_slow])

LEVELS = st.sampled_from([0.5, 0.75, 0.8, 0.9, 0.95])


@SLOWLY
@given(scores=st.lists(st.integers(0, 20), min_size=1, max_size=40), level=LEVELS)
def test_with_one_case_per_draw_it_is_the_usual_order_statistic(scores, level):
    rank = math.ceil((len(scores) + 1) * Fraction(str(level)))
    expected = sorted(scores)[rank - 1] if rank <= len(scores) else math.inf
    assert quantile(scores, [str(i) for i in range(len(scores))], level) == expected


@SLOWLY
@given(scores=st.lists(st.integers(0, 9), min_size=1, max_size=30), score=st.integers(0, 9))
def test_a_p_value_counts_scores_that_are_as_large(scores, score):
    found = p_value(scores, [str(i) for i in range(len(scores))], score)
    assert found == pytest.approx((1 + sum(each >= score for each in scores)) / (len(scores) + 1))


@SLOWLY
@given(groups=st.lists(st.sampled_from("abcdefghijkl"), min_size=1, max_size=30), level=LEVELS)
def test_a_group_counts_once_however_many_cases_it_has(groups, level):
    own = weights(groups)
    names = sorted(set(groups))
    for name in names:
        assert sum(w for w, group in zip(own, groups, strict=True) if group == name) == pytest.approx(
            1 / (len(names) + 1)
        )
    scores = [ord(group) for group in groups]
    assert quantile(scores, groups, level) == quantile([ord(name) for name in names], names, level)


@pytest.mark.parametrize("level", [0.5, 0.9])
def test_intervals_are_those_of_crepes(level):
    crepes = pytest.importorskip("crepes")
    rng = np.random.default_rng(0)
    residuals, scales = rng.normal(size=37), rng.uniform(0.5, 2, size=37)
    regressor = crepes.ConformalRegressor()
    regressor.fit(residuals, sigmas=scales)
    low, high = regressor.predict_int(np.array([0.3]), sigmas=np.array([1.7]), confidence=level)[0]
    reach = quantile(np.abs(residuals) / scales, [str(i) for i in range(37)], level) * 1.7
    assert (low, high) == pytest.approx((0.3 - reach, 0.3 + reach))


def test_risk_control_by_hand():
    losses = [0.5, 0.2, 0.1, 0.0]
    # n = 9: (9 loss + 1) / 10
    assert [first_controlled(losses, 9, share) for share in (0.09, 0.1, 0.19, 0.2, 0.6)] == [None, 3, 2, 2, 0]
    assert mean_over_draws([[1.0], [0.0], [0.5]], ["a", "a", "b"]).tolist() == [0.5]


def test_levels_need_so_many_draws_and_lie_between_0_and_1():
    assert [draws_needed(level) for level in (0.5, 0.8, 0.9, 0.95, 0.99)] == [1, 4, 9, 19, 99]
    with pytest.raises(InputError, match=r"level is 90, but a number between 0 and 1 is needed. Use 0.9 for 90 %"):
        check_level(90)
    assert quantile([1.0] * 8, list("abcdefgh"), 0.9) == math.inf
    assert quantile([], [], 0.9) == math.inf
