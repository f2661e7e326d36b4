"""The verdict says what the numbers say: better, worse, no difference, changed masks, and what is not known."""

from dataclasses import replace

import numpy as np
import pytest
from msgspec.structs import replace as with_other

from segcal.calibrators import make_calibrator
from segcal.calibrators.temperature import TemperatureScaling
from segcal.errors import InputError
from segcal.report.verdict import (
    Change,
    Facts,
    FlipCount,
    MeanCalibration,
    PartCounts,
    calibrator_words,
    make_verdict,
    measured_verdict,
)
from segcal.statistics.reliability import Curve
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
        everywhere=MeanCalibration(0.962, 0.931),
        change={"ece": change(*ece), "nll": change(*nll), "dice": change(0.8, 0.8, 0, 0)},
        flips=FlipCount(1_000_000, flips),
        everywhere_after=MeanCalibration(0.935, 0.931),
        boundary=MeanCalibration(0.9, 0.8),
        boundary_after=MeanCalibration(0.82, 0.8),
    )


def verdict_of(found, counts=COUNTS, shifted=()):
    return make_verdict(found, counts, 0.95, WHY, shifted)


def text_of(verdict):
    parts = [verdict.headline, verdict.before, verdict.done, *verdict.changed, verdict.mask, *verdict.limits]
    return " ".join(parts).replace("\N{NO-BREAK SPACE}", " ")


def test_an_improvement_is_told_with_its_interval_and_its_cases():
    verdict = verdict_of(facts())
    assert verdict.tone == "better"
    assert verdict.effects == {"ece": "better", "nll": "better"}
    assert verdict.headline == "The confidences became better calibrated, and the mask did not change."
    text = text_of(verdict)
    assert "overconfident by 3.1 points" in text
    assert "5.00 % → 2.00 % (change −3.00 points; 95 % interval −4.00 to −2.00 points; better in 25 of 30" in text
    assert "0 of 1,000,000 voxels. With this calibrator it cannot change" in text
    assert (
        "mean confidence of 93.5 % (before: 96.2 %) and is right in 93.1 % of the voxels: overconfident by 0.4 points."
        in text
    )
    below = replace(facts(), everywhere_after=MeanCalibration(0.921, 0.931))
    assert "of the voxels: underconfident by 1.0 points." in text_of(verdict_of(below))
    assert "fitted on 10 cases" in text
    assert "chosen on 5 validation cases." in text
    several = text_of(verdict_of(facts(), with_other(COUNTS, repeats=3)))
    assert "25 of 30 test cases, counted in each of 3 divisions" in several
    few = text_of(verdict_of(facts(ece=(0.05, 0.02, None, None))))
    assert "5.00 % → 2.00 % (better in 25 of 30 test cases; too few for an interval)." in few


@pytest.mark.parametrize(
    ("ece", "nll", "tone", "words"),
    [
        ((0.05, 0.049, -0.01, 0.01), (0.3, 0.2, -0.2, -0.05), "better", "better calibrated by some measures"),
        ((0.05, 0.06, 0.001, 0.02), (0.3, 0.4, 0.05, 0.2), "worse", "made the confidences worse"),
        ((0.05, 0.06, 0.001, 0.02), (0.3, 0.2, -0.2, -0.05), "mixed", "helped by some measures and hurt by others"),
        ((0.05, 0.049, -0.01, 0.01), (0.3, 0.3, -0.2, 0.2), "same", "no measurable difference"),
    ],
)
def test_what_is_not_better_is_not_called_better(ece, nll, tone, words):
    verdict = verdict_of(facts(ece, nll))
    assert verdict.tone == tone
    assert words in verdict.headline


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
    assert "Test cases are few (12)" in text
    assert "was not tested here" not in text
    assert "another scanner" in text_of(verdict_of(facts()))
    assert "are few" not in text_of(verdict_of(facts()))


def test_confidences_that_were_only_measured_have_a_verdict_too():
    assert "overconfident by 3.0 points" in measured_verdict(MeanCalibration(0.95, 0.92), 30).headline
    assert "underconfident" in measured_verdict(MeanCalibration(0.9, 0.92), 30).headline
    assert "calibrated on average" in measured_verdict(MeanCalibration(0.92, 0.92), 30).headline


def test_shares_near_the_ends_are_not_rounded_to_them():
    text = text_of(verdict_of(replace(facts(), everywhere=MeanCalibration(0.99996, 0.5))))
    assert "had a mean confidence of 99.996 % and was right" in text
    sure = replace(facts(), everywhere=MeanCalibration(0.99999999, 0.5))
    assert "mean confidence of more than 99.999 % and" in text_of(verdict_of(sure))


def test_an_effect_needs_its_whole_interval_on_one_side():
    assert change(1, 0, -2, -0.1).effect() == "better"
    assert change(0.8, 0.9, 0.05, 0.2).effect("higher") == "better"
    assert change(0.8, 0.9, 0.05, 0.2).effect() == "worse"
    assert change(1, 0, -2, 0.0).effect() == "same"
    assert Change(1, 0, Difference(None, None, None, 0, 3, 0, 0, 0)).effect() == "same"


def test_honesty_is_that_of_the_voxels_of_a_curve_and_a_gap_has_a_direction():
    curve = Curve(count=np.array([2, 0, 6]), right=np.array([1, 0, 4]), confidence=np.array([0.5, 0.0, 5.7]))
    assert MeanCalibration.of(curve) == MeanCalibration(6.2 / 8, 5 / 8)
    with pytest.raises(InputError, match="no voxel that counts"):
        MeanCalibration.of(Curve(np.zeros(3, int), np.zeros(3, int), np.zeros(3)))
    assert MeanCalibration(0.95, 0.92).judged == "overconfident by 3.0 points"
    assert MeanCalibration(0.90, 0.92).judged == "underconfident by 2.0 points"
    assert MeanCalibration(0.9205, 0.92).judged == ""


def test_a_temperature_is_said_with_what_it_says_of_the_model():
    calibrator = TemperatureScaling(3)
    calibrator.inverse_temperature.data.fill_(0.5)
    assert calibrator_words(calibrator) == "Temperature scaling, temperature 2.00 (overconfident before)"
    calibrator.inverse_temperature.data.fill_(1.25)
    assert calibrator_words(calibrator).endswith("temperature 0.80 (underconfident before)")
    assert calibrator_words(make_calibrator("ets", 3)) == "Ensemble temperature scaling"
