"""Evidence against bets written out, and its false alarms."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from segcal.trust.drift import POWERS, weigh


@given(st.lists(st.floats(0.001, 1), min_size=1, max_size=7))
def test_evidence_is_the_mean_of_all_bets_with_what_is_kept(p_values):
    n = len(p_values)
    total = 1 / (n + 1)
    for power in POWERS:
        for start in range(1, n + 1):
            stake = 1 / (start * (start + 1)) / len(POWERS)
            total += stake * math.prod(power * p ** (power - 1) for p in p_values[start - 1 :])
    assert weigh(p_values, 0.01).logs[-1] == pytest.approx(math.log(total), abs=1e-9)


def test_false_alarms_come_no_more_often_than_stated():
    rng = np.random.default_rng(0)
    alarms = [weigh(rng.random(200), 0.1).reached is not None for _ in range(300)]
    assert 0 < np.mean(alarms) <= 0.1 + 0.03


def test_a_drift_is_found_and_dated():
    rng = np.random.default_rng(1)
    dates = []
    for _ in range(20):
        found = weigh([*rng.random(60), *(0.03 * rng.random(20))], 0.01)
        assert 60 <= found.reached <= 70
        dates.append(found.since)
    assert abs(np.median(dates) - 60) <= 1


def test_nothing_says_nothing():
    assert weigh([], 0.01) == ([], None, None)
