"""Reasons for a review, one by one."""

from dataclasses import replace

import numpy as np
import pytest

import segcal
from segcal.trust.estimates import BadMasks, Errors
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
    (row,) = [row for row in judge.rows([changed], ["voxels"]) if row["structure"] == judge.titles[number]]
    return row


def test_a_usual_case_passes(judge, one):
    row = reasons(judge, one)
    assert (row["review"], row["reason"]) == (False, "")
    assert row["dice_low"] <= row["expected_dice"] <= row["dice_high"]
    assert row["volume"] == pytest.approx(one.prob[0, 2])
    assert row["mask_volume"] == one.mask[0, 2]


def test_an_empty_mask_is_shown_where_it_is_not_known_to_be_right(judge, one):
    row = reasons(judge, one, mask=0, hit=0)
    text = "empty, as in 0 reference draws; 9 are needed to know whether that is right"
    assert row["reason"].startswith(text)
    assert (row["dice_low"], row["dice_high"], row["dice_below_tau"]) == (0.0, 1.0, None)
    assert not row["corrected"]
    known = judge.reference
    nothing = np.zeros_like(known.mask)
    missed = replace(judge, reference=replace(known, mask=nothing, counted=nothing, found=nothing))
    row = reasons(missed, one, mask=0, hit=0)
    assert row["reason"].startswith("empty, and the structure was there in 100 % of 30 such reference draws")
    assert row["dice_below_tau"] == pytest.approx(30.5 / 31)
    absent = replace(missed, reference=replace(missed.reference, truth=nothing))
    row = reasons(absent, one, mask=0, hit=0)
    assert "empty" not in row["reason"]
    assert row["dice_below_tau"] == pytest.approx(0.5 / 31)


def test_a_low_expected_dice_is_shown(judge, one):
    row = reasons(judge, one, hit=0.2 * one.mask[0, 2])
    assert row["reason"].startswith("low expected Dice (below 0.5 with a chance of 98 %)")
    skewed = Errors(np.repeat([0.0, 0.8], [24, 6]), judge.dice[2].groups)  # a Dice above what was expected, if anything
    row = reasons(replace(judge, dice=(*judge.dice[:2], skewed)), one, hit=0.6 * one.mask[0, 2])
    assert row["dice_below_tau"] < 0.1
    assert row["reason"].startswith("low expected Dice (may be below 0.5)")
    bad = BadMasks(np.linspace(0.5, 0.9, 10), tuple("abcdefghij"))
    known = replace(judge, bad=(*judge.bad[:2], bad))
    row = reasons(known, one, hit=0.7 * one.mask[0, 2])
    above = (bad.values >= row["uncorrected_dice"]).sum()
    assert 1 <= above < 10
    assert row["reason"].startswith(f"low expected Dice (as high in {100 * (above + 1) / 11:.0f} % of bad masks)")


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
    assert "its expected Dice could not be corrected" in row["reason"]
    assert row["dice_low"] is row["dice_high"] is None
    assert row["expected_dice"] == row["uncorrected_dice"]
    assert not row["corrected"]


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
