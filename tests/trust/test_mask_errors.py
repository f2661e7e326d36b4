"""Losses by margin beside brute force over all pairs of voxels, which imports nothing of segcal."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from segcal.cases.masks import MaskCase
from segcal.trust.mask_errors import LossSteps, mask_errors, missed_by, wrong_in

MARGINS = (0.0, 0.4, 1.0, 1.5, 2.0, 2.6, 3.3, 9.0, 40.0)


def all_distances(targets, sources, spacing):
    """Return the distance of every source voxel to the nearest target voxel, by all pairs."""
    if not len(targets):
        return np.full(len(sources), np.inf)
    apart = (sources[:, None] - targets[None]) * np.asarray(spacing, float)
    return np.sqrt((apart**2).sum(-1)).min(1)


def brute_missed(mask, truth, spacing, margin):
    far = all_distances(np.argwhere(mask), np.argwhere(truth), spacing)
    return np.mean(far > margin + 1e-6)


def brute_wrong(mask, right, spacing, margin):
    deep = all_distances(np.argwhere(~mask), np.argwhere(mask), spacing)
    later = [m for m in (margin, *deep[np.isfinite(deep)]) if m >= margin]
    wrong = ~right[mask]
    return max(np.mean(wrong[deep > m + 1e-6]) if (deep > m + 1e-6).any() else 0.0 for m in later)


@pytest.mark.parametrize(("space", "spacing"), [((7, 6, 5), (1.0, 1.25, 4.0)), ((9, 11), None), ((8, 5), (0.5, 2.0))])
@pytest.mark.parametrize("share", [0.02, 0.3, 0.9])
def test_losses_are_those_of_all_pairs(space, spacing, share, rng):
    sizes = spacing or [1.0] * len(space)
    for _ in range(5):
        mask, truth = rng.random(space) < share, rng.random(space) < 0.4
        mask.flat[rng.integers(mask.size)] = True
        missed, wrong = missed_by(mask, truth, spacing), wrong_in(mask, truth, spacing)
        for margin in MARGINS:
            assert missed.at(margin) == pytest.approx(brute_missed(mask, truth, sizes, margin))
            assert wrong.at(margin) == pytest.approx(brute_wrong(mask, truth, sizes, margin))


@given(arrays(bool, (4, 6)), arrays(bool, (4, 6)), st.floats(0.05, 1.0))
def test_losses_fall_and_the_first_margin_is_the_smallest(mask, truth, share):
    mask[1, 2] = truth[0, 0] = True
    for steps in (missed_by(mask, truth, (1.0, 1.7)), wrong_in(mask, truth, (1.0, 1.7))):
        assert steps.places[0] == 0
        assert (np.diff(steps.places) > 0).all()
        assert (np.diff(steps.losses) <= 0).all()
        first = steps.first(1 - share)
        if np.isfinite(first):
            assert steps.at(first) <= 1 - share + 1e-8
        assert all(steps.at(place) > 1 - share for place in steps.places[steps.places < first])


def test_steps_are_constant_from_each_place_on():
    steps = LossSteps(np.array([0.0, 1.0, 2.5]), np.array([0.6, 0.2, 0.1]))
    assert [steps.at(margin) for margin in (0.0, 0.99, 1.0, 2.4, 2.5, 100.0)] == [0.6, 0.6, 0.2, 0.2, 0.1, 0.1]
    assert [steps.first(most) for most in (0.7, 0.6, 0.3, 0.1, 0.05)] == [0.0, 0.0, 1.0, 2.5, np.inf]


def test_empty_masks_and_truths_have_their_rule():
    empty, full = np.zeros((3, 4), bool), np.ones((3, 4), bool)
    some = empty.copy()
    some[1, 1:3] = True
    case = MaskCase([np.where(some, 1, 0), np.where(some, 2, 0)], np.where(full, 3, 0), None)
    found = mask_errors(case)
    assert sorted(found) == [1, 2, 3]
    assert found[1].missed is None  # nothing to miss
    assert found[1].wrong.first(0.05) == 1.0  # all is wrong, so that only an empty inner mask is right
    assert found[2] == (None, None, [0, 2], 0)  # of another run alone
    assert found[3].missed.at(1e9) == 1.0  # nothing grows from an empty mask
    assert found[3].missed.first(0.05) == np.inf
    assert found[3].wrong is None
    assert wrong_in(full, some, None).first(0.05) == np.inf  # the border of the array is no border


def test_voxels_that_do_not_count_are_neither_missed_nor_wrong():
    mask, truth = np.array([[1, 1, 1, 0, 0]]), np.array([[1, 1, -1, -1, 1]])
    found = mask_errors(MaskCase([mask], truth, None))[1]
    assert found.truth == 3
    assert found.wrong.at(0.0) == 0.0
    assert found.missed.at(0.0) == pytest.approx(1 / 3)
    assert found.missed.first(0.0) == 2.0
