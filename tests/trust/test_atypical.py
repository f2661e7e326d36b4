"""Statistics and compositions of cases, and p-values that are never too small."""

import numpy as np
import pytest

from segcal.trust.atypical import (
    Compositions,
    atypical_p,
    atypicality,
    column_p,
    deviations,
    most_unusual,
    rank_p,
    rarity,
    statistics_of,
)
from segcal.trust.estimates import SumTable
from segcal.trust.learn import Summer


@pytest.fixture(scope="module")
def table(make_cases, fitted):
    cases = make_cases(6, seed=3, groups=list("aabbcd")).with_disagreement()
    return SumTable.of([Summer(cases, [fitted.calibrator])(case_id)[0] for case_id in cases.ids])


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
    assert atypicality(rows) == pytest.approx(np.sqrt((z**2).mean(1)))
    crowd = np.vstack([rows, rng.normal(size=(9, 3)) + 9])
    assert atypicality(crowd)[19:].min() > atypicality(crowd)[:19].max()


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


def by_hand(rows, near, groups):
    points = np.sqrt(rows / rows.sum(1, keepdims=True))
    off = np.sqrt(((points[:, None] - points) ** 2).sum(2))
    found = []
    for place, own in enumerate(off):
        others = [one for other, one in enumerate(own) if other != place and groups[other] != groups[place]]
        found.append(sorted(others)[near - 1])
    return found


def test_a_score_is_the_distance_from_the_kth_nearest_of_another_group():
    rng = np.random.default_rng(0)
    rows, groups = rng.random((13, 4)), tuple("aabbccddeefg")
    seen = Compositions(rows[:12], groups)
    assert seen.scores(rows[12]) == pytest.approx(by_hand(rows, 5, [*groups, "new"]), abs=1e-9)
    for first, near in ((4, 3), (24, 6), (29, 7)):
        rows = rng.random((first + 2, 3))
        single = Compositions(rows[:first])
        single.scores(rows[first], keep=True)
        assert single.scores(rows[-1]) == pytest.approx(by_hand(rows, near, range(first + 2)), abs=1e-9)
        assert len(single.scores(rows[0])) == first + 2  # the one before was not kept


def test_scores_do_not_depend_on_which_draw_is_the_new_one():
    rows = np.random.default_rng(1).random((21, 3))
    whole = sorted(Compositions(rows[:20]).scores(rows[20]))
    assert sorted(Compositions(rows[1:]).scores(rows[0])) == whole


def test_one_reference_draw_is_no_error_and_says_nothing():
    assert rank_p(Compositions(np.ones((1, 3))).scores(np.array([1.0, 2, 3]))) == 1


def clusters(rng, count):
    """Return compositions of three clusters of equal size, none of which is in the middle."""
    middle = np.array([[0.9, 0.05, 0.05], [0.05, 0.9, 0.05], [0.05, 0.05, 0.9]])
    return np.array([rng.dirichlet(60 * middle[one]) for one in rng.permutation(count) % 3])


def test_a_draw_of_a_cluster_is_rare_as_often_as_stated_and_one_between_clusters_always():
    rng = np.random.default_rng(2)
    found = []
    for _ in range(400):
        rows = clusters(rng, 40)
        found.append(rank_p(Compositions(rows[:-1]).scores(rows[-1])))
    assert np.mean(np.array(found) <= 0.05) == pytest.approx(0.05, abs=0.025)
    assert np.mean(np.array(found) <= 0.5) == pytest.approx(0.5, abs=0.06)
    for seed in range(10):
        seen = Compositions(clusters(np.random.default_rng(seed), 39))
        # The middle is the mean of the reference: usual by every number alone.
        for _ in range(6):
            assert rank_p(seen.scores(rng.dirichlet([20, 20, 20]), keep=True)) <= 6 / 45
