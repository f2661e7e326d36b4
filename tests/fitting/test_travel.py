"""What is harm elsewhere: one part that loses, single cases, calibration errors; each by hand."""

import math

import pytest

from segcal.fitting.choice import harm, worst_mean
from segcal.fitting.scores import Worth

PARTS = {"here": [f"c{k}" for k in range(6)], "there": [f"c{k}" for k in range(6, 12)]}
GROUPS = {f"c{k}": f"c{k}" for k in range(12)}
HOME = {f"c{k}": Worth(0.2, 0.1, 0.2) for k in range(12)}


def away(differences, ece=0.0, ba_ece=0.0, nll=0.2):
    return {f"c{k}": Worth(nll + d, 0.1 + ece, 0.2 + ba_ece) for k, d in enumerate(differences)}


def test_a_gain_everywhere_is_no_harm():
    assert harm(away([-0.1] * 12), HOME, GROUPS, PARTS) == ""


def test_a_part_that_loses_beyond_its_noise_is_named_though_the_mean_gains():
    assert harm(away([-0.1] * 6 + [0.01, 0.011] * 3), HOME, GROUPS, PARTS) == "worse in there, when held out: +0.0105"


@pytest.mark.parametrize(
    ("loss", "errors", "harmful"), [(0.9, 1, False), (1.1, 1, True), (1.9, 2, False), (2.1, 2, True)]
)
def test_noise_is_so_many_standard_errors_over_the_groups_of_the_part(loss, errors, harmful):
    spread = [-0.01, 0.01] * 3
    error = math.sqrt(sum(d * d for d in spread) / 5 / 6)
    found = harm(
        away([-0.1] * 6 + [d + loss * error for d in spread], nll=1.0), away([0.0] * 12, nll=1.0), GROUPS, PARTS, errors
    )
    assert bool(found) == harmful


def test_cases_of_one_group_are_one():
    one = GROUPS | {f"c{k}": "same" for k in range(6, 12)}
    assert harm(away([-0.1] * 6 + [-0.05, 0.06] * 3), HOME, GROUPS, PARTS) == "worst cases elsewhere: +0.060 nats"
    assert harm(away([-0.1] * 6 + [-0.05, 0.06] * 3), HOME, one, PARTS) == "worse in there, when held out: +0.0050"


def test_the_worst_cases_are_bounded():
    assert harm(away([-0.1] * 11 + [0.019]), HOME, GROUPS, PARTS) == ""
    assert harm(away([-0.1] * 11 + [0.021]), HOME, GROUPS, PARTS) == "worst cases elsewhere: +0.021 nats"
    assert harm(away([-0.1] * 11 + [0.09], nll=1.0), away([0.0] * 12, nll=1.0), GROUPS, PARTS) == ""
    assert harm(away([-0.1] * 11 + [0.11], nll=1.0), away([0.0] * 12, nll=1.0), GROUPS, PARTS).startswith("worst cases")
    assert worst_mean([0.0] * 36 + [1.0, 2.0, 3.0, -9.0]) == 2.5  # two of forty


def test_calibration_errors_must_not_rise_elsewhere():
    assert harm(away([-0.1] * 12, ece=0.01), HOME, GROUPS, PARTS) == "worse in ECE elsewhere"
    assert harm(away([-0.1] * 12, ba_ece=0.01), HOME, GROUPS, PARTS) == "worse in BA-ECE elsewhere"


def test_a_part_of_which_nothing_is_known_says_nothing():
    assert harm(away([-0.1] * 12), HOME, GROUPS, PARTS | {"empty": ["c99"]}) == ""
