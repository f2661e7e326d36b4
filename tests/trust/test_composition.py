"""Scores of compositions against those written out, and how often they are rare."""

import numpy as np
import pytest

from segcal.trust.atypical import rank_p
from segcal.trust.composition import Compositions


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
