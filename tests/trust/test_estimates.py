"""Intervals from errors, and the limit of a review, against counting."""

import numpy as np
import pytest

from segcal.trust.estimates import Errors, bad_masks, dice_errors, expected_dice, volume_errors


@pytest.fixture
def labelled(make_table):
    """Tables of one class, of which some masks are empty."""

    def make(count=30, agreement=True):
        rng = np.random.default_rng(0)
        mask, right = rng.integers(0, 7, count) * 4.0, rng.uniform(0.3, 1, count)
        truth, agree = rng.integers(0, 30, count) * 1.0, rng.uniform(0.3, 1, count)
        columns = {
            "mask": mask, "prob": mask * right + rng.uniform(0, 5, count), "hit": mask * right,
            "spread": rng.uniform(1, 9, count), "truth": truth, "counted": mask,
            "found": np.minimum(truth, mask) * rng.uniform(0.2, 1, count),
        }  # fmt: skip
        columns |= {"agreement": agree} if agreement else {}
        return make_table(**{name: values[:, None] for name, values in columns.items()})

    return make


def test_errors_are_in_units_of_their_scale_and_those_of_dice_of_cases_with_a_mask(labelled):
    table = labelled()
    columns = (table.mask, table.prob, table.hit, table.agreement, table.dice)
    expected = []
    for m, p, h, a, d in zip(*(column[:, 0] for column in columns), strict=True):
        if m > 0:
            soft = 2 * h / (m + p)
            expected.append((d - min(soft, a)) / (1 - soft * a + 0.02))
    errors = dice_errors(table, 0)
    assert errors.signed == pytest.approx(expected)
    assert errors.draws == len(expected) < 30
    off = (table.truth - table.prob)[:, 0] / np.sqrt(1 + table.spread[:, 0])
    assert volume_errors(table, 0).signed == pytest.approx(off)
    alone = labelled(agreement=False)
    assert expected_dice(alone) == pytest.approx(alone.expected_dice)  # without members, the soft Dice


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


def test_the_limit_lets_few_bad_masks_pass(labelled):
    table = labelled(60)
    bad = sorted(
        float(e) for e, d, m in zip(expected_dice(table)[:, 0], table.dice[:, 0], table.mask[:, 0], strict=True)
        if m > 0 and d < 0.6
    )  # fmt: skip
    rank = int(np.ceil((len(bad) + 1) * 0.8))
    own = bad_masks(table, 0, 0.6)
    assert own.review_limit(0.8) == pytest.approx(bad[rank - 1])
    for value in (*bad, 0.2, 0.99):
        assert (own.p_value(value, 0.8) <= 0.2) == (value > bad[rank - 1])
    assert bad_masks(table, 0, 0.01).review_limit(0.9) is None
    assert bad_masks(table, 0, 0.01).p_value(0.5, 0.9) is None


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
