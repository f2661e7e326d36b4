"""Intervals from errors, and the limit of a review, against counting."""

import numpy as np
import pytest

from segcal.trust import estimates
from segcal.trust.estimates import Errors, bad_masks, dice_errors, expected_dice, review_limit, volume_errors
from segcal.trust.sums import CaseSums, TruthSums
from segcal.trust.table import SumTable


def labelled(count=30, seed=0, agreement=True):
    rng = np.random.default_rng(seed)
    found = []
    for number in range(count):
        mask, hit = rng.integers(0, 7) * 4, rng.uniform(0.3, 1)
        prob = mask * hit + rng.uniform(0, 5)
        own = [np.array([float(each)]) for each in (mask, prob, mask * hit, rng.uniform(1, 9), 0, 0)]
        truth = [np.array([float(each)]) for each in (rng.integers(0, 30), 0, mask)]
        truth[1] = np.minimum(truth[0], mask) * rng.uniform(0.2, 1)
        agree = np.array([rng.uniform(0.3, 1)]) if agreement else None
        sums = CaseSums(f"c{number:02d}", f"g{number}", 99, 1.0, "voxels", *own, agreement=agree)
        sums.truth = TruthSums(*truth, *[np.zeros((1, 66))] * 3)
        found.append(sums)
    return SumTable.of(found)


def test_dice_errors_are_of_cases_with_a_mask_in_units_of_their_scale():
    table = labelled()
    errors = dice_errors(table, 0)
    expected = []
    for m, p, h, a, d in zip(
        *(column[:, 0] for column in (table.mask, table.prob, table.hit, table.agreement, table.dice)), strict=True
    ):
        if m > 0:
            soft = 2 * h / (m + p)
            expected.append((d - min(soft, a)) / (1 - soft * a + 0.02))
    assert errors.signed == pytest.approx(expected)
    assert errors.draws == len(expected) < 30


def test_without_members_it_is_the_soft_dice_alone():
    table = labelled(agreement=False)
    assert expected_dice(table) == pytest.approx(table.expected_dice)


def test_volume_errors_are_of_all_cases():
    table = labelled()
    off = (table.truth - table.prob)[:, 0] / np.sqrt(1 + table.spread[:, 0])
    assert volume_errors(table, 0).signed == pytest.approx(off)


def test_an_interval_is_cut_where_no_value_can_be():
    errors = Errors(np.linspace(-1, 1, 21), tuple(map(str, range(21))))
    assert errors.span(0.5, 0.1, 0.8, 0.0, 1.0) == pytest.approx((0.5, 0.41, 0.59))  # 18th of 21
    assert errors.span(0.5, 2.0, 0.8, 0.0, 1.0) == (0.5, 0.0, 1.0)
    assert not errors.supports(0.96)
    assert errors.span(0.5, 0.1, 0.96, 0.0, 1.0) == (0.5, 0.0, 1.0)


def test_the_chance_of_less_is_the_share_of_errors_that_lead_there():
    errors = Errors(np.array([-0.3, -0.1, 0.0, 0.2]), ("a", "b", "c", "d"))
    assert errors.chance_below(0.75, 1.0, 0.7) == pytest.approx((2 + 0.5) / 5)
    assert Errors(np.array([]), ()).chance_below(0.5, 1.0, 0.7) is None


def test_the_limit_lets_few_bad_masks_pass():
    table = labelled(60)
    bad = sorted(
        float(e) for e, d, m in zip(expected_dice(table)[:, 0], table.dice[:, 0], table.mask[:, 0], strict=True)
        if m > 0 and d < 0.6
    )  # fmt: skip
    rank = int(np.ceil((len(bad) + 1) * 0.8))
    own = bad_masks(table, 0, 0.6)
    assert review_limit(own, 0.8) == pytest.approx(bad[rank - 1])
    for value in (*bad, 0.2, 0.99):
        assert (own.p_value(value, 0.8) <= 0.2) == (value > bad[rank - 1])
    assert review_limit(bad_masks(table, 0, 0.01), 0.9) is None
    assert bad_masks(table, 0, 0.01).p_value(0.5, 0.9) is None
    assert estimates.SMALLEST == 0.02


def test_with_folds_each_labelled_case_is_compared_by_its_own_calibrator():
    signed, folds = np.array([-0.4, 0.1, 0.3, -0.2]), (0, 0, 1, 1)
    errors = Errors(signed, ("a", "b", "c", "d"), folds)
    values, scales = [0.5, 0.6, 0.9], [0.2, 0.1, 9.0]  # by the two folds, and by the calibrator itself
    centres = [values[k] for k in folds]
    reaches = [abs(r) * scales[k] for r, k in zip(signed, folds, strict=True)]
    low = sorted(c - r for c, r in zip(centres, reaches, strict=True))
    high = sorted(c + r for c, r in zip(centres, reaches, strict=True))
    assert errors.span(values, scales, 0.6, 0.0, 1.0) == pytest.approx(
        (0.9, low[1], high[2])
    )  # the 3rd of 4 and 1 more
    places = [c + s * r for c, s, r in zip(centres, [0.2, 0.2, 0.1, 0.1], signed, strict=True)]
    assert errors.corrected(values, scales, 0.0, 1.0) == pytest.approx(np.median(places))
    assert errors.chance_below(values, scales, 0.55) == pytest.approx((sum(p < 0.55 for p in places) + 0.5) / 5)


def test_the_correction_is_the_median_over_draws():
    errors = Errors(np.array([-0.1, -0.1, -0.1, 0.2, 0.4]), ("a", "a", "a", "b", "c"))
    assert errors.corrected(0.5, 1.0, 0.0, 1.0) == pytest.approx(0.7)  # group a counts once
    assert errors.corrected(0.95, 1.0, 0.0, 1.0) == 1.0
    assert Errors(np.array([0.1, 0.3]), ("a", "b")).corrected(0.5, 1.0, 0.0, 1.0) == pytest.approx(0.7)
