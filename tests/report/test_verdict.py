"""The verdict says what the numbers say: better, worse, no difference, changed masks, and what is not known."""

from dataclasses import replace

import pytest
from msgspec.structs import replace as with_other

from segcal.report.facts import Change, Facts, FlipCount, Honesty, PartCounts
from segcal.report.verdict import make_verdict, measured_verdict, shift_sentence, short_verdict
from segcal.summary import Difference

COUNTS = PartCounts(cal=10, val=5, test=30, repeats=1)
WHY = "on 5 validation cases"


def change(before, after, low, high, better=25, cases=30):
    gap = Difference(after - before, low, high, cases, 0, better, 1, cases - better - 1)
    return Change(before, after, gap)


def facts(ece=(0.05, 0.02, -0.04, -0.02), nll=(0.3, 0.2, -0.2, -0.05), calibrator="cms_ap", flips=(0, 0, 0)):
    return Facts(
        task="heart",
        calibrator=calibrator,
        title="Mask-keeping scaling",
        keeps=calibrator != "ms",
        everywhere=Honesty(0.962, 0.931),
        change={"ece": change(*ece), "nll": change(*nll), "dice": change(0.8, 0.8, 0, 0)},
        flips=FlipCount(1_000_000, flips),
        everywhere_after=Honesty(0.935, 0.931),
        boundary=Honesty(0.9, 0.8),
        boundary_after=Honesty(0.82, 0.8),
        offset=1.0,
        ace=(0.1, 0.05),
    )


def verdict_of(found, counts=COUNTS, shifted=()):
    return make_verdict(found, counts, 0.95, WHY, shifted)


def text_of(verdict):
    parts = [verdict.headline, verdict.before, verdict.done, *verdict.changed, verdict.mask, *verdict.limits]
    return " ".join(parts).replace("\N{NO-BREAK SPACE}", " ")


def test_an_improvement_is_told_with_its_interval_and_its_cases():
    verdict = verdict_of(facts())
    assert verdict.tone == "better"
    assert verdict.headline == "The confidences became more honest, and the mask did not change."
    text = text_of(verdict)
    assert "overconfident by 3.1 points" in text
    assert "5.00 % → 2.00 % (change −3.00 points; 95 % interval −4.00 to −2.00 points; better in 25 of 30" in text
    assert "0 of 1,000,000 voxels. With this calibrator it cannot change" in text
    assert "93.5 % sure and right in 93.1 %" in text
    assert "fitted on 10 cases" in text
    assert "chosen on 5 validation cases." in text


@pytest.mark.parametrize(
    ("ece", "nll", "tone", "words"),
    [
        ((0.05, 0.06, 0.001, 0.02), (0.3, 0.4, 0.05, 0.2), "worse", "made the confidences worse"),
        ((0.05, 0.06, 0.001, 0.02), (0.3, 0.2, -0.2, -0.05), "mixed", "helped by some measures and hurt by others"),
        ((0.05, 0.049, -0.01, 0.01), (0.3, 0.3, -0.2, 0.2), "same", "no measurable difference"),
    ],
)
def test_what_is_not_better_is_not_called_better(ece, nll, tone, words):
    verdict = verdict_of(facts(ece, nll))
    assert verdict.tone == tone
    assert words in verdict.headline


def test_an_improvement_by_some_measures_only_is_called_that():
    verdict = verdict_of(facts(ece=(0.05, 0.049, -0.01, 0.01)))
    assert verdict.tone == "better"
    assert "more honest by some measures" in verdict.headline


def test_cases_that_are_tested_in_several_divisions_are_counted_so():
    assert "25 of 30 test cases, counted in each of 3 divisions" in text_of(
        verdict_of(facts(), with_other(COUNTS, repeats=3))
    )


def test_a_changed_mask_is_counted_by_kind():
    verdict = verdict_of(facts(calibrator="ms", flips=(600, 300, 100)))
    assert "the mask changed in 0.1 % of the voxels" in text_of(verdict)
    assert "1,000 of 1,000,000 voxels (0.1 %): 300 became right, 600 became wrong, 100 stayed wrong" in text_of(verdict)
    assert "does not promise" in verdict.mask
    assert "did not change here" in verdict_of(facts(calibrator="ms")).mask


def test_nothing_chosen_is_said_plainly():
    verdict = verdict_of(facts(calibrator="identity"))
    assert "Nothing better was found" in verdict.headline
    assert (verdict.tone, verdict.changed) == ("same", [])


def test_limits_name_shifts_few_cases_and_what_was_not_tested():
    few = with_other(COUNTS, test=12)
    shifted = replace(facts(ece=(0.2, 0.1, -0.2, -0.05)), task="heart_strong")
    text = text_of(verdict_of(facts(), few, [shifted]))
    assert "On heart_strong, without fitting again, the calibration error is 10.00 % (20.00 % without" in text
    assert "12 test cases are few" in text
    assert "was not tested here" not in text
    assert "another scanner" in text_of(verdict_of(facts()))
    assert "are few" not in text_of(verdict_of(facts()))


def test_confidences_that_were_only_measured_have_a_verdict_too():
    assert "overconfident by 3.0 points" in measured_verdict(Honesty(0.95, 0.92), 30).headline
    assert "underconfident" in measured_verdict(Honesty(0.9, 0.92), 30).headline
    assert "as sure as it is right" in measured_verdict(Honesty(0.92, 0.92), 30).headline


def test_shares_near_the_ends_are_not_rounded_to_them():
    text = text_of(verdict_of(replace(facts(), everywhere=Honesty(0.99996, 0.5))))
    assert "was 99.996 % sure" in text
    sure = replace(facts(), everywhere=Honesty(0.99999999, 0.5))
    assert "more than 99.999 % sure" in text_of(verdict_of(sure))


@pytest.fixture
def short():
    better = change(0.20, 0.15, -0.08, -0.02, 5, 6)
    return replace(
        facts(),
        task="roads",
        everywhere=Honesty(0.97, 0.94),
        boundary=Honesty(0.80, 0.85),
        offset=1.25,
        change={"nll": better, "ece": better, "ba_ece": better, "dice": change(0.7, 0.7, 0, 0, 5, 6)},
        ace=(0.1, 0.04),
        flips=FlipCount(5000, (0, 0, 0)),
        matrix_flips=FlipCount(5000, (30, 15, 5), 0.9),
        matrix_change={"dice": change(0.70, 0.68, -0.03, -0.01)},
    )


def test_what_was_wrong_is_said_with_its_direction(short):
    text = short_verdict(short)[0]
    assert "overconfident by 3.0 points (97.0 % sure and 94.0 % right)" in text
    assert "less than 3 voxels from a boundary it was underconfident by 5.0 points" in text
    assert "varies by 1.25" in text
    even = replace(short, everywhere=Honesty(0.94, 0.9395), boundary=None, offset=None)
    assert short_verdict(even)[0] == (
        "roads: before calibration the ensemble was as sure as it was right on average (94.0 % sure and 94.0 % right)."
    )


def test_the_short_form_says_an_improvement_with_its_interval_and_the_cases(short):
    text = short_verdict(short)[1]
    start = "roads: the default calibrator, cms_ap, improves NLL 0.2000 -> 0.1500 (-0.0500 [-0.0800, -0.0200]"
    assert text.startswith(f"{start}, better in 5 of 6 cases), ECE")
    assert text.endswith("ACE 0.1000 -> 0.0400.")


def test_worse_and_no_difference_are_said_too(short):
    mixed = {"ece": change(0.1, 0.12, 0.01, 0.03), "ba_ece": change(0.1, 0.11, -0.01, 0.03)}
    text = short_verdict(replace(short, change=short.change | mixed))[1]
    assert "improves NLL" in text
    assert "; worsens ECE 0.1000 -> 0.1200" in text
    assert "; does not measurably change BA-ECE" in text


def test_no_calibrator_can_be_the_default(short):
    text = short_verdict(replace(short, calibrator="identity"))[1]
    assert "no calibrator was better than none" in text


def test_the_mask_is_counted(short):
    assert short_verdict(short)[2] == "roads: the mask did not change: 0 of 5,000 voxels."
    changed = replace(short, flips=FlipCount(5000, (1, 0, 1), 0.5))
    assert short_verdict(changed)[2] == "roads: the mask changed in 2 of 5,000 voxels."


def test_what_matrix_scaling_flips_is_said_with_its_effect_on_dice(short):
    assert short_verdict(short)[3] == (
        "roads: matrix scaling would have flipped 50 labels (1.00 %): 60 % right to wrong, 30 % wrong to right, "
        "10 % wrong to wrong; 90 % of them less than 3 voxels from a boundary. It worsens Dice "
        "(-2.00 points [-3.00, -1.00])."
    )
    gain = replace(short, matrix_change={"dice": change(0.7, 0.71, 0.005, 0.02)})
    assert "It improves Dice (+1.00 points [+0.50, +2.00])" in short_verdict(gain)[3]
    none = replace(short, matrix_flips=FlipCount(5000, (0, 0, 0), None))
    assert short_verdict(none)[3] == "roads: matrix scaling would have flipped no label."
    assert len(short_verdict(replace(short, matrix_flips=None))) == 3


def test_a_shift_is_set_beside_the_clean_cases(short):
    worse = change(0.40, 0.45, 0.01, 0.09)
    shifted = replace(short, task="roads_strong", change=short.change | {"ece": worse})
    assert shift_sentence(short, shifted) == (
        "roads_strong: ECE 0.4000 without and 0.4500 with cms_ap, fitted on clean cases (clean: 0.2000 without and "
        "0.1500 with cms_ap). Under this shift cms_ap worsens ECE and improves NLL."
    )
