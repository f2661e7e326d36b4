"""Evidence against bets written out, and its false alarms."""

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from segcal.trust.drift import weigh

# On a machine that is busy an example may take long.
SLOWLY = settings(suppress_health_check=[HealthCheck.too_slow])


def by_hand(p_values, reference):
    n = len(p_values)
    total = 1 / (n + 1)
    for other in (0.0, 0.1, 0.25):
        for stake in (0.5, 0.9):
            for start in range(n):
                capital = 1 / ((start + 1) * (start + 2)) / 6
                for t in range(start, n):
                    c = min(1, (t - start + 1 + other * reference) / (reference + t + 1))
                    capital *= 1 - stake + stake * (p_values[t] <= c) / c
                total += capital
    return total


@SLOWLY
@given(st.lists(st.floats(0.001, 1), min_size=1, max_size=7), st.integers(1, 50))
def test_evidence_is_the_capital_of_all_bets_with_what_is_kept(p_values, reference):
    assert weigh(p_values, reference, 0.01).logs[-1] == pytest.approx(math.log(by_hand(p_values, reference)), abs=1e-9)


def test_a_drift_is_found_and_dated():
    assert weigh([], 20, 0.01) == ([], None, None, None, {})
    rng = np.random.default_rng(1)
    dates = []
    for _ in range(20):
        # Every drifted draw is more unusual than the 40 of the reference and the 30 before it, not than other such.
        drifted = [rng.random() * (k + 1) / (40 + 30 + k + 1) for k in range(12)]
        found = weigh([*rng.random(30), *drifted], 40, 0.01)
        assert 30 <= found.reached <= 37
        dates.append(found.since)
    assert abs(np.median(dates) - 30) <= 1


def test_tiers_of_leading_kinds_divide_half_of_the_capital_and_each_kind_is_dated():
    rows = np.random.default_rng(5).random((10, 6))
    rows[4:, 2], rows[6:, 5] = 0.001, 0.001
    alone = np.array([weigh(rows[:, kind], 20, 0.1).logs for kind in range(6)]).T
    found = weigh(rows, 20, 0.1, [[0], [1, 2], []])
    shares = np.array([1 / 4, 1 / 8, 1 / 8, 1 / 6, 1 / 6, 1 / 6])
    assert found.logs == pytest.approx((alone + np.log(shares)).max(1).tolist())
    assert (found.kind, found.each) == (2, {2: 4, 5: 6})
    shares = np.array([1 / 2, *[1 / 10] * 5])
    assert weigh(rows, 20, 0.1, [[0], range(1, 6)]).logs == pytest.approx((alone + np.log(shares)).max(1).tolist())


def test_starts_that_are_given_up_do_not_change_the_evidence():
    p_values = np.random.default_rng(4).random(250)
    whole = by_hand(p_values.tolist(), 8)
    assert weigh(p_values, 8, 0.01).logs[-1] == pytest.approx(math.log(whole), abs=1e-9)
