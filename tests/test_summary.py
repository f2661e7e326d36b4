import json

import numpy as np
import pytest
from msgspec import to_builtins

from segcal.errors import ArtifactError, InputError
from segcal.resample import Draws
from segcal.summary import (
    SUMMARY,
    Bootstrap,
    Difference,
    Estimate,
    ResultRow,
    Summary,
    difference,
    estimate,
    over_repeats,
    read_summary,
)


def make_values(seed=0, sizes=(40, 25, 31)):
    rng = np.random.default_rng(seed)
    return [rng.normal(i, 1 + i, size=n) for i, n in enumerate(sizes)]


@pytest.mark.parametrize(
    ("low", "high", "better", "verdict"),
    [
        (-2, -1, "lower", "better"),
        (-2, -1, "higher", "worse"),
        (1, 2, "lower", "worse"),
        (1, 2, "higher", "better"),
        (-1, 0, "lower", "no difference"),
        (0, 0, "higher", "no difference"),
    ],
)
def test_an_interval_must_leave_out_zero(low, high, better, verdict):
    assert Difference((low + high) / 2, low, high, 5, 0, 0, 0, 0).verdict(better) == verdict


def test_the_estimate_is_the_mean_of_the_means_of_the_repeats():
    values = make_values()
    found = estimate(values, Draws([40, 25, 31]))
    assert found.value == pytest.approx(np.mean([column.mean() for column in values]))
    assert found.low < found.value < found.high
    assert (found.cases, found.undefined) == (96, 0)


def test_the_same_seed_gives_the_same_draws_and_equal_data_equal_intervals():
    values = make_values(3)
    first, second = (estimate(values, Draws([40, 25, 31], seed=7)) for _ in range(2))
    assert first == second == estimate([column.copy() for column in values], Draws([40, 25, 31], seed=7))
    assert first.low != estimate(values, Draws([40, 25, 31], seed=8)).low


def test_the_interval_of_a_difference_is_paired():
    base = make_values(4)
    shifted = [column - 0.5 for column in base]
    found = difference(base, shifted, Draws([40, 25, 31]))
    assert found.value == pytest.approx(-0.5)
    assert found.low == pytest.approx(-0.5)
    assert found.high == pytest.approx(-0.5)
    assert (found.better, found.equal, found.worse) == (96, 0, 0)


@pytest.mark.parametrize(("better", "counts"), [("lower", (2, 1, 1)), ("higher", (1, 1, 2)), (None, (0, 1, 0))])
def test_cases_are_counted_as_better_equal_or_worse(better, counts):
    first, second = [np.array([1.0, 2.0, 3.0, 4.0, np.nan])], [np.array([0.5, 2.0, 2.0, 5.0, 1.0])]
    found = difference(first, second, Draws([5]), better)
    assert (found.better, found.equal, found.worse) == counts
    assert found.undefined == 1


def test_ace_is_reported_as_mean_min_max_over_repeats():
    found = over_repeats([0.04, 0.07, 0.01])
    assert (found.value, found.low, found.high) == (pytest.approx(0.04), 0.01, 0.07)
    assert over_repeats([None, float("nan")]).value is None


def test_nothing_defined_is_none():
    found = estimate([np.full(4, np.nan)], Draws([4]))
    assert (found.value, found.low, found.high, found.undefined) == (None, None, None, 4)


def test_values_that_do_not_fit_the_draws_are_refused():
    with pytest.raises(
        InputError, match=r"values has \(3,\) cases in its repeats, but the replicates were made for \(4,\)"
    ):
        estimate([np.zeros(3)], Draws([4]))


ROWS = (
    ResultRow("t", "", "ts(single)", {"nll": Estimate(0.5, 0.25, 1.0, 7, 1)}, True),
    ResultRow("t", "u", "ts(single)", {"ace": Estimate(None, None, None, repeats=0)}, False),
)
EMPTY = Summary(1, "h", 3, Bootstrap(), {"lam": None, "voxels": 20_000}, ("n",), {}, (), (), {}, ROWS, ())


def test_a_summary_comes_back_as_it_was(tmp_path):
    (tmp_path / SUMMARY).write_text(json.dumps(to_builtins(EMPTY)))
    found = read_summary(tmp_path)
    assert found == EMPTY
    assert found.fit["voxels"] == 20_000
    assert found.numbers("t", "ts(single)")["nll"].low == 0.25
    assert found.numbers("t", "ts(single)", "u")["ace"].value is None
    assert found.numbers("t", "dc(single)") == {}


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (None, r"summary.json is missing, but it is needed\. Run the benchmark again\.$"),
        ("{", "is not readable"),
        ("[1]", "is not a summary of schema 1, but one is needed. Run the benchmark again"),
        ('{"schema": 2}', "is not a summary of schema 1"),
        ('{"schema": 1}', "is not readable .*missing required field `hash`"),
    ],
)
def test_what_is_not_ours_is_refused(text, match, tmp_path):
    if text is not None:
        (tmp_path / SUMMARY).write_text(text)
    with pytest.raises(ArtifactError, match=match):
        read_summary(tmp_path)


def test_an_estimate_shows_what_it_is_of():
    assert repr(Estimate(0.5, 0.25, 1.0, 7, 1)) == "Estimate(value=0.5, low=0.25, high=1.0, cases=7, undefined=1)"
    assert repr(Estimate(0.5, 0.5, 0.5, repeats=1)) == "Estimate(value=0.5, low=0.5, high=0.5, repeats=1)"


@pytest.mark.parametrize("count", [1, 2, 3])
def test_an_interval_needs_three_groups(count):
    values, draws = [np.arange(4.0)[:count]], Draws([count], 50)
    one, gap = estimate(values, draws), difference(values, values, draws)
    assert one.value == pytest.approx(np.arange(count).mean())
    assert (one.low is None, one.high is None, gap.low is None, gap.high is None) == (count < 3,) * 4
    assert estimate([np.array([1.0, np.nan, 2.0])], Draws([3])).low is None  # defined for two
    assert estimate([np.arange(6.0)], Draws([list("aaabbb")])).low is None  # two groups


def test_an_interval_does_not_go_beyond_what_can_be():
    values = [np.array([0.0, 0.0, 1.0, 1.0])]
    free, bound = (estimate(values, Draws([4]), bounds=each) for each in ((-np.inf, np.inf), (0.0, 1.0)))
    assert free.low < 0 < 1 < free.high
    assert (bound.low, bound.high) == (0.0, 1.0)
