"""Reasons for a review, one by one."""

from dataclasses import replace

import numpy as np
import pytest

import segcal
from segcal.trust.judge import Judge
from segcal.trust.learn import Summer
from segcal.trust.table import SumTable


@pytest.fixture(scope="module")
def judge(fitted):
    return Judge.of(fitted, fitted.reference, 0.9, 0.5, True)


@pytest.fixture(scope="module")
def one(fitted, make_cases):
    cases = make_cases(1, seed=30).with_disagreement()
    return SumTable.of([Summer(fitted.calibrator, cases)("case00")])


def reasons(judge, one, number=2, **columns):
    changed = replace(one, **{name: one.__dict__[name].copy() for name in columns})
    for name, value in columns.items():
        getattr(changed, name)[0, number] = value
    (row,) = [row for row in judge.rows(changed, ["voxels"]) if row["structure"] == judge.titles[number]]
    return row


def test_a_usual_case_passes(judge, one):
    row = reasons(judge, one)
    assert (row["review"], row["reason"]) == (False, "")
    assert row["dice_low"] <= row["expected_dice"] <= row["dice_high"]
    assert row["volume"] == pytest.approx(one.prob[0, 2])
    assert row["mask_volume"] == one.mask[0, 2]


def test_an_empty_mask_is_shown_where_masks_are_seldom_empty(judge, one):
    row = reasons(judge, one, mask=0, hit=0)
    assert row["reason"].startswith("empty, as in 0 % of the reference cases")
    assert (row["dice_low"], row["dice_high"], row["dice_below_tau"]) == (0.0, 1.0, None)
    often = replace(judge, reference=replace(judge.reference, mask=np.zeros_like(judge.reference.mask)))
    assert "empty" not in reasons(often, one, mask=0, hit=0)["reason"]


def test_a_low_expected_dice_is_shown(judge, one):
    row = reasons(judge, one, hit=0.2 * one.mask[0, 2])
    assert row["reason"].startswith("low expected Dice (may be below 0.5)")
    limited = replace(judge, limits=(0.1, 0.1, 0.6))
    assert reasons(limited, one, hit=0.2 * one.mask[0, 2])["reason"].startswith("low expected Dice (at or below 0.60)")


def test_members_that_disagree_are_shown(judge, one):
    assert "members disagree (p = 0.032)" in reasons(judge, one, agreement=0.01)["reason"]


def test_an_unusual_case_is_shown(judge, one):
    assert (
        "unlike the reference cases (p = 0.032)" in reasons(judge, one, edge_prob=1e-3, spread=1.0, prob=0.1)["reason"]
    )


def test_a_structure_with_too_few_labelled_cases_has_no_interval(judge, one):
    mask = judge.reference.mask.copy()
    mask[4:, 2] = 0
    few = replace(judge, dice=(*judge.dice[:2], replace(judge.dice[2], signed=np.zeros(4), groups=tuple("abcd"))))
    row = reasons(few, one)
    assert row["reason"].startswith("the structure is in 4 reference draws, 9 are needed")
    assert row["dice_low"] is row["dice_high"] is None


def test_levels_and_tau_that_cannot_be_are_refused(fitted):
    text = "level is 0.99, but the reference has 30 draws .* and 99 are needed. Use level=0.96 or less"
    with pytest.raises(segcal.InputError, match=text):
        Judge.of(fitted, fitted.reference, 0.99, 0.7, True)
    with pytest.raises(segcal.InputError, match="tau is 70, but a Dice between 0 and 1 is needed"):
        Judge.of(fitted, fitted.reference, 0.9, 70, True)


def test_bounds_are_shown_per_structure(judge):
    rows = judge.bound_rows()
    assert [row["structure"] for row in rows] == ["wall", "core"]
    assert all(row["outer_threshold"] <= 0.5 <= row["inner_threshold"] for row in rows)
