"""Expected Dice against all truths there are, its bound, and the mask that is chosen against all masks there are."""

import itertools
import math

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from segcal.decisions.base import Ranked
from segcal.decisions.dice import EXACT, best_dice, dice_bound, exact_curve

PROBS = st.lists(st.floats(0, 1).map(lambda p: round(p, 3)), min_size=1, max_size=6)


def every_truth(probs):
    """Yield all truths with their chance."""
    for truth in itertools.product((0, 1), repeat=len(probs)):
        yield np.array(truth), math.prod(p if y else 1 - p for p, y in zip(probs, truth, strict=True))


def brute(probs, mask):
    """The mean Dice of a mask over all 2^n truths; two empty ones agree."""
    total = 0.0
    for truth, chance in every_truth(probs):
        size = mask.sum() + truth.sum()
        total += chance * (2 * (mask * truth).sum() / size if size else 1.0)
    return total


def ranked(probs, rest=()):
    every = np.array([*probs, *rest], float)
    with np.errstate(divide="ignore"):
        log_none = float(np.log1p(-every).sum())
    return Ranked(-np.sort(-np.array(probs, float)), float(every.sum()), log_none)


@settings(max_examples=30)
@given(PROBS)
def test_the_exact_curve_is_the_mean_over_all_truths(probs):
    down = sorted(probs, reverse=True)
    for k, value in enumerate(exact_curve(np.array(down))):
        assert value == pytest.approx(brute(down, np.arange(len(down)) < k), abs=1e-12)


@settings(max_examples=30)
@given(PROBS, st.integers(1, 63))
def test_the_quotient_is_as_near_as_the_bound_says_for_any_mask(probs, chosen):
    p = np.array(probs)
    mask = np.array([chosen >> k & 1 for k in range(len(p))])
    if mask.any():
        quotient = 2 * (p * mask).sum() / (mask.sum() + p.sum())
        bound = dice_bound(mask.sum(), p.sum(), (p * (1 - p)).sum())
        assert abs(brute(probs, mask) - quotient) <= bound + 1e-12


@settings(max_examples=30)
@given(PROBS)
def test_no_mask_of_all_there_are_has_a_higher_expected_dice(probs):
    threshold = best_dice(ranked(probs))
    own = brute(probs, (np.array(probs) >= threshold).astype(int))
    best = max(brute(probs, np.array(mask)) for mask in itertools.product((0, 1), repeat=len(probs)))
    assert own == pytest.approx(best, abs=1e-9) or len(set(probs)) < len(probs)  # equal ones stay together
    assert own <= best + 1e-12


@settings(max_examples=30)
@given(st.lists(st.floats(0.01, 1), min_size=1, max_size=5), st.lists(st.floats(0, 0.01), max_size=4))
def test_the_number_of_truths_elsewhere_may_be_taken_as_its_mean(probs, rest):
    down = np.array(sorted(probs, reverse=True))
    found = exact_curve(down, sum(rest))
    variance = sum(p * (1 - p) for p in rest)
    for k in range(1, len(down) + 1):
        mask = np.append(np.arange(len(down)) < k, np.zeros(len(rest), bool))
        assert abs(found[k] - brute([*down, *rest], mask)) <= variance / (k + 1 + sum(rest)) ** 2 + 1e-12


def test_large_images_have_the_threshold_of_half_the_best_quotient():
    """For many voxels the best mask is {p >= D / 2}, D the best quotient (Lipton et al., 2014)."""
    rng = np.random.default_rng(0)
    p = -np.sort(-rng.beta(0.3, 0.9, size=20_000))
    threshold = best_dice(ranked(p))
    quotients = 2 * np.cumsum(p) / (np.arange(1, len(p) + 1) + p.sum())
    assert len(p) > EXACT
    assert threshold == pytest.approx(quotients.max() / 2, abs=1e-3)


def test_a_few_voxels_in_a_large_image_are_ranked_exactly():
    """The quotient takes one voxel too many here: the exact sum over all truths tells."""
    probs, rest = [0.9, 0.6, 0.36], np.full(5000, 1e-5)
    threshold = best_dice(ranked(probs, rest))
    masks = [np.arange(3) < k for k in range(4)]
    assert threshold == sorted(probs, reverse=True)[int(np.argmax([brute(probs, m) for m in masks])) - 1]


def test_where_nothing_is_probable_the_mask_is_empty():
    assert best_dice(ranked([])) == math.inf
    assert best_dice(ranked([0.01, 0.02])) == math.inf
    assert best_dice(ranked(np.full(2 * EXACT, 1e-5))) == math.inf
    assert best_dice(ranked([1.0, 0.0])) == 1.0


def test_a_structure_that_the_preserved_mask_does_not_have_stays_away():
    likely = ranked(np.full(3000, 0.4))
    assert best_dice(likely) == 0.4
    assert best_dice(likely._replace(present=False)) == math.inf
