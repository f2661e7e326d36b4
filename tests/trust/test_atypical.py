"""Statistics of cases, and p-values that are never too small."""

import numpy as np
import pytest

from segcal.trust.atypical import atypical_p, column_p, deviations, most_unusual, oddness, rarity, statistics_of
from segcal.trust.learn import Summer
from segcal.trust.table import SumTable


@pytest.fixture(scope="module")
def table(make_cases, fitted):
    cases = make_cases(6, seed=3, groups=list("aabbcd")).with_disagreement()
    return SumTable.of([Summer(fitted.calibrator, cases)(case_id) for case_id in cases.ids])


def test_a_group_is_one_row_the_mean_of_its_cases(table):
    found = statistics_of(table, ["outside", "wall", "core"])
    assert found.draws == ("a", "b", "c", "d")
    assert found.rows.shape == (4, len(found.names)) == (4, 3 + 10 * 3)
    place = found.names.index("confidence inside core")
    assert found.rows[0, place] == pytest.approx(table.precision[:2, 2].mean(), rel=1e-5)  # six digits are kept
    apart = statistics_of(table, ["outside", "wall", "core"], together=False)
    assert apart.draws == table.ids
    assert apart.rows[1, place] == pytest.approx(table.precision[1, 2], rel=1e-5)
    place = found.names.index("mean confidence")
    assert found.rows[3, place] == pytest.approx(table.hit[5].sum() / table.voxels[5], rel=1e-5)


def test_deviations_are_robust_and_know_no_missing_number():
    rows = np.array([[1.0, np.nan, 5], [2, np.nan, 5], [3, 1, 5], [4, 2, 5], [1e9, np.nan, 5]])
    found = deviations(rows)
    assert found[:, 0] == pytest.approx([-2 / 1.4826, -1 / 1.4826, 0, 1 / 1.4826, 20])
    assert found[0, 1] == 0
    assert not found[:, 2].any()


def test_oddness_is_the_root_of_the_mean_square_and_odd_ones_do_not_hide_each_other():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(19, 3))
    middle = np.median(rows, 0)
    z = (rows - middle) / (1.4826 * np.median(np.abs(rows - middle), 0))
    assert oddness(rows) == pytest.approx(np.sqrt((z**2).mean(1)))
    crowd = np.vstack([rows, rng.normal(size=(9, 3)) + 9])
    assert oddness(crowd)[19:].min() > oddness(crowd)[:19].max()


def test_a_case_like_the_others_is_rare_as_often_as_stated():
    rng = np.random.default_rng(1)
    found = []
    for _ in range(600):
        rows = rng.standard_t(3, size=(20, 4)) @ np.diag([1, 2, 3, 0.1])
        found.append(atypical_p(rows[:-1], rows[-1]))
    assert np.mean(np.array(found) <= 0.05) == pytest.approx(0.05, abs=0.025)
    assert np.mean(np.array(found) <= 0.5) == pytest.approx(0.5, abs=0.06)


def test_a_group_counts_once_in_the_rarity_of_a_case():
    rows = np.array([[5.0], [5.1], [0.0], [0.1], [-0.1], [0.2], [-0.2]])
    found = rarity(rows, list("aabcdef"), np.array([5.05]))
    assert found == pytest.approx(1 / 7 / 2 + 1 / 7)  # one of the two of group a is farther off, and itself
    assert rarity(rows, list("abcdefg"), np.array([5.05])) == pytest.approx(atypical_p(rows, np.array([5.05])))


def test_one_far_away_has_the_smallest_p_value_and_the_statistic_is_named():
    rng = np.random.default_rng(2)
    rows = rng.normal(size=(19, 3))
    odd = np.array([0, 9.0, 0])
    assert atypical_p(rows, odd) == pytest.approx(1 / 20)
    assert atypical_p(rows, odd, smooth=0.0) == 0
    name, shift = most_unusual(rows, odd[None], ["a", "b", "c"])
    assert name == "b"
    assert shift > 4


def test_numbers_are_ranked_one_by_one_with_ties_and_missing_ones_in_the_middle():
    rows = np.array([[1.0, 5, np.nan, np.nan], [2, 5, 1, np.nan], [3, 5, 3, np.nan]])
    found = column_p(rows, np.array([2.5, 5, np.nan, 7]), 0.5)
    assert found.tolist() == [(1 + 0.5) / 4, 0.5, (1 + 0.5 * 2) / 4, 0.5 / 4 + 0.375]  # 7 stands where none is known


def test_a_jitter_is_no_deviation():
    rows = np.full((20, 1), 3.0)
    rows[-1] += 1e-6
    assert abs(deviations(rows)).max() < 0.02
    assert deviations(np.vstack([rows[:-1], [[4.0]]]))[-1, 0] == 20
