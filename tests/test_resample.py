"""Draws of groups against plain loops, and the coverage of intervals."""

import math

import numpy as np
import pytest
import scipy

from segcal import resample
from segcal.errors import InputError
from segcal.resample import Draws, draw_counts, percentile_interval, row_blocks, studentised_interval

UNITS = [list("abac"), list("cdd")]
VALUES = [np.array([0.3, 0.5, 0.1, np.nan]), np.array([0.9, 0.4, 0.6])]


@pytest.mark.parametrize(("times", "size"), [(0, 3), (1, 1), (50, 13)])
def test_very_many_draws_are_the_same_draws_in_less_room(times, size, monkeypatch):
    plain = draw_counts(np.random.default_rng(3), times, size)
    assert plain.dtype == float
    assert plain.shape == (times, size)
    assert (plain.sum(1) == size).all()
    monkeypatch.setattr(resample, "LARGE", 0)
    small = draw_counts(np.random.default_rng(3), times, size)
    assert small.dtype == (np.uint8 if times else float)
    assert np.array_equal(small, plain)
    assert np.array_equal(np.concatenate(list(row_blocks(small))), small)


def test_replicates_of_very_many_draws_are_those_of_few(monkeypatch):
    plain = Draws(UNITS, 40, seed=1).replicates(VALUES)
    monkeypatch.setattr(resample, "LARGE", 100)
    draws = Draws(UNITS, 40, seed=1)
    assert len(list(row_blocks(draws.weights))) > 1
    for one, other in zip(draws.replicates(VALUES), plain, strict=True):
        assert np.allclose(one, other, rtol=1e-13, equal_nan=True)


def by_hand(units, values, groups, repeats):
    """Return the mean of means of the drawn groups and repeats, and its standard error, in the plainest way."""
    known = {
        name for own, column in zip(units, values, strict=True) for name, x in zip(own, column, strict=True) if x == x
    }
    means, parts = {}, {}
    for r in repeats:
        drawn = [x for g in groups for name, x in zip(units[r], values[r], strict=True) if name == g and x == x]
        if drawn:
            means[r] = sum(drawn) / len(drawn)
            parts[r] = [
                sum(x - means[r] for name, x in zip(units[r], values[r], strict=True) if name == g and x == x)
                / len(drawn)
                for g in groups
            ]
    there = [r for r in repeats if r in means]
    if not there:
        return math.nan, 0.0
    off = [sum(parts[r][k] for r in there) / len(there) for k in range(len(groups))]
    count, middle = len(known), sum(means[r] for r in there) / len(there)
    between = sum((means[r] - middle) ** 2 for r in there) / len(there) / max(len(there) - 1, 1)
    return middle, math.sqrt(count / (count - 1) * sum(x * x for x in off) + between)


def test_replicates_against_plain_loops_with_groups_repeats_and_undefined_values():
    draws = Draws(UNITS, 200, seed=4)
    assert draws.groups == 4
    found = draws.replicates(VALUES)
    assert (found.value, found.error) == pytest.approx(by_hand(UNITS, VALUES, list("abcd"), [0, 1]))
    for number in range(200):
        groups = [name for name, n in zip("abcd", draws.weights[number], strict=True) for _ in range(int(n))]
        repeats = [r for r, n in enumerate(draws.repeat[number]) for _ in range(n)]
        value, error = by_hand(UNITS, VALUES, groups, repeats)
        assert found.values[number] == pytest.approx(value, nan_ok=True)
        assert found.errors[number] == pytest.approx(error, abs=1e-7)  # the root of a rounding error


def test_groups_and_repeats_are_drawn_with_replacement():
    draws = Draws([list("aabbcc"), list("ccddee")], 4000, seed=1)
    assert (draws.weights.sum(1) == draws.groups).all()
    assert draws.weights.mean(0) == pytest.approx(np.ones(5), abs=0.05)
    assert (draws.repeat.sum(1) == 2).all()
    assert (draws.repeat[:, 0] == 1).mean() == pytest.approx(0.5, abs=0.03)


def test_cases_without_groups_are_their_own_and_no_repeat_shares_them():
    draws = Draws([2, list("ab"), 3], 10)
    assert draws.groups == 7
    assert [each.tolist() for each in draws.index] == [[0, 1], [2, 3], [4, 5, 6]]


def test_the_error_of_single_cases_is_the_usual_one():
    values = np.random.default_rng(0).normal(size=12)
    found = Draws([12], 10).replicates([values])
    assert found.error == pytest.approx(values.std(ddof=1) / math.sqrt(12))
    few = studentised_interval(Draws([4], 10).replicates([values[:4]]))
    plain = scipy.stats.t.interval(0.95, 3, values[:4].mean(), values[:4].std(ddof=1) / 2)
    assert few == pytest.approx(plain)  # fewer than five: Student's t alone


def test_an_interval_is_never_narrower_than_students():
    values = np.random.default_rng(1).exponential(size=9)
    low, high = studentised_interval(Draws([9]).replicates([values]))
    plain = scipy.stats.t.interval(0.95, 8, values.mean(), values.std(ddof=1) / 3)
    assert low == pytest.approx(plain[0])
    assert high > plain[1] + 0.1  # skewed to the right


def test_one_group_that_differs_from_all_others_gives_no_endless_interval():
    # A third of the replicates lack the one group: their mean is far off, and their spread is next to nothing.
    values = np.concatenate([np.linspace(-1e-3, 1e-3, 14), [-1.0]])
    found = Draws([15]).replicates([values])
    assert np.quantile(np.abs(found.values - found.value) / found.errors, 0.95) > 50
    low, high = studentised_interval(found)
    far = scipy.stats.t.ppf(0.975, 14) * found.error
    assert found.value - 6 * far < low < found.value - 2 * far  # 80 times as far before
    assert high == pytest.approx(found.value + far)


@pytest.mark.parametrize("count", [4, 8])
def test_percentiles_of_few_groups_are_taken_farther_out(count):
    drawn = np.random.default_rng(0).normal(size=1_000_000)
    reach = scipy.stats.t.ppf(0.95, count - 1) * math.sqrt(count / (count - 1))
    assert percentile_interval(drawn, 0.9, count) == pytest.approx((-reach, reach), abs=0.05)
    assert percentile_interval(drawn, 0.9)[1] == pytest.approx(1.645, abs=0.01)
    assert percentile_interval(drawn, 0.9, 2) == (None, None)


def test_nothing_defined_has_no_interval():
    found = Draws([4]).replicates([np.full(4, np.nan)])
    assert math.isnan(found.value)
    assert studentised_interval(found) == percentile_interval(np.full(3, np.nan)) == (None, None)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (([], 10), "but at least one repeat and one case in each are needed"),
        (([["a"], []], 10), "but at least one repeat and one case in each are needed"),
        (([3], 10, -1), "but a whole number of at least 0 is needed"),
        (([3], 10, True), "but a whole number of at least 0 is needed"),
        (([3], 0), "replicates is 0, but at least 1 is needed"),
    ],
)
def test_draws_that_cannot_be_are_refused(arguments, match):
    with pytest.raises(InputError, match=match):
        Draws(*arguments)


def test_levels_above_one_are_refused():
    with pytest.raises(InputError, match="level is 95, but a share between 0 and 1 is needed"):
        studentised_interval(Draws([3], 10).replicates([np.ones(3)]), 95)
    with pytest.raises(InputError, match="level is 95, but a share between 0 and 1 is needed"):
        percentile_interval(np.ones(3), 95)
