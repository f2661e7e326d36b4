"""The verdict in words, from hand-made numbers; it must be able to say worse and no difference."""

from dataclasses import replace

import pytest

from segcal.benchmark.pipelines import Pipeline
from segcal.studies import Study
from segcal.studies.facts import Change, Facts, FlipCount, Honesty
from segcal.demo.verdict import padding_verdict, shift_verdict, task_verdict
from segcal.summary import Difference


def change(before, after, low, high, better=5, cases=6):
    gap = Difference(after - before, low, high, cases, 0, better, 0, cases - better)
    return Change(before, after, gap)


@pytest.fixture
def facts():
    better = change(0.20, 0.15, -0.08, -0.02)
    return Facts(
        task="roads",
        cases=6,
        everywhere=Honesty(0.97, 0.94),
        boundary=Honesty(0.80, 0.85),
        offset=1.25,
        chosen=Pipeline("mean_logits", "cms_ap"),
        change={"nll": better, "ece": better, "ba_ece": better, "dice": change(0.7, 0.7, 0, 0)},
        ace=(0.1, 0.04),
        chosen_flips=FlipCount(5000, (0, 0, 0), None),
        matrix_flips=FlipCount(5000, (30, 15, 5), 0.9),
        matrix_change={"dice": change(0.70, 0.68, -0.03, -0.01)},
    )


def test_what_was_wrong_is_said_with_its_direction(facts):
    text = task_verdict(facts)[0]
    assert "overconfident by 3.0 points (97.0 % sure and 94.0 % right)" in text
    assert "less than 3 voxels from a boundary it was underconfident by 5.0 points" in text
    assert "varies by 1.25" in text
    even = replace(facts, everywhere=Honesty(0.94, 0.9395), boundary=None, offset=None)
    assert task_verdict(even)[0] == (
        "roads: before calibration the ensemble was as sure as it was right on average (94.0 % sure and 94.0 % right)."
    )


def test_an_improvement_is_said_with_its_interval_and_the_cases(facts):
    text = task_verdict(facts)[1]
    start = "roads: the default calibrator, cms_ap, improves NLL 0.2000 -> 0.1500 (-0.0500 [-0.0800, -0.0200]"
    assert text.startswith(f"{start}, better in 5 of 6 cases), ECE")
    assert text.endswith("ACE 0.1000 -> 0.0400.")


def test_worse_and_no_difference_are_said_too(facts):
    mixed = {"ece": change(0.1, 0.12, 0.01, 0.03), "ba_ece": change(0.1, 0.11, -0.01, 0.03)}
    text = task_verdict(replace(facts, change=facts.change | mixed))[1]
    assert "improves NLL" in text
    assert "; worsens ECE 0.1000 -> 0.1200" in text
    assert "; does not measurably change BA-ECE" in text


def test_no_calibrator_can_be_the_default(facts):
    text = task_verdict(replace(facts, chosen=Pipeline("mean_logits", "identity")))[1]
    assert "no calibrator was better than none" in text


def test_the_mask_is_counted(facts):
    assert task_verdict(facts)[2] == "roads: the mask did not change: 0 of 5,000 voxels."
    changed = replace(facts, chosen_flips=FlipCount(5000, (1, 0, 1), 0.5))
    assert task_verdict(changed)[2] == "roads: the mask changed in 2 of 5,000 voxels."


def test_what_matrix_scaling_flips_is_said_with_its_effect_on_dice(facts):
    assert task_verdict(facts)[3] == (
        "roads: matrix scaling would have flipped 50 labels (1.00 %): 60 % right to wrong, 30 % wrong to right, "
        "10 % wrong to wrong; 90 % of them less than 3 voxels from a boundary. It worsens Dice "
        "(-2.00 points [-3.00, -1.00])."
    )
    gain = replace(facts, matrix_change={"dice": change(0.7, 0.71, 0.005, 0.02)})
    assert "It improves Dice (+1.00 points [+0.50, +2.00])" in task_verdict(gain)[3]
    none = replace(facts, matrix_flips=FlipCount(5000, (0, 0, 0), None))
    assert task_verdict(none)[3] == "roads: matrix scaling would have flipped no label."
    assert len(task_verdict(replace(facts, matrix_flips=None))) == 3


def test_a_shift_is_set_beside_the_clean_cases(facts):
    worse = change(0.40, 0.45, 0.01, 0.09)
    shifted = replace(facts, task="roads_strong", change=facts.change | {"ece": worse})
    assert shift_verdict(facts, shifted) == (
        "roads_strong: ECE 0.4000 without and 0.4500 with cms_ap, fitted on clean cases (clean: 0.2000 without and "
        "0.1500 with cms_ap). Under this shift cms_ap worsens ECE and improves NLL."
    )


def test_padding_is_told_with_what_the_check_says():
    data = {
        "calibrators": {"identity": {"masked": {"ece": {"value": 0.01}}, "unmasked": {"ece": {"value": 0.3}}}},
        "check": {"cases": 4, "caught": 4, "mean_share": 0.57},
        "temperature": {"masked": 1.5, "unmasked": 0.17},
    }
    text = padding_verdict(Study("padding", data, {}))
    assert "(57 % of the voxels)" in text
    assert "ECE of 0.0100 into 0.3000 and the fitted temperature from 1.50 to 0.17" in text
    assert text.endswith("segcal check reports it in 4 of 4 cases.")
    without = padding_verdict(Study("padding", data | {"temperature": {}}, {}))
    assert "temperature" not in without
