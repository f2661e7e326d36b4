"""The verdict says what the numbers say: better, worse, no difference, changed masks, and what is not known."""

from dataclasses import replace

import pytest

from segcal.benchmark.page.verdict import effect_of, make_verdict, measured_verdict
from segcal.benchmark.pipelines import Pipeline
from segcal.studies.facts import Change, Facts, FlipCount, Honesty
from segcal.summary import Difference

DIVISION = {"cal": 10, "val": 5, "test": 30, "repeats": 1, "level": 0.95, "chosen": "on 5 validation cases"}


def change(before, after, low, high):
    return Change(before, after, Difference(after - before, low, high, 30, 0, 25, 1, 4))


def facts(ece=(0.05, 0.02, -0.04, -0.02), nll=(0.3, 0.2, -0.2, -0.05), calibrator="cms_ap", flips=(0, 0, 0)):
    return Facts(
        task="heart",
        cases=30,
        everywhere=Honesty(0.962, 0.931),
        boundary=Honesty(0.9, 0.8),
        offset=1.0,
        chosen=Pipeline("mean_logits", calibrator),
        change={"ece": change(*ece), "nll": change(*nll), "dice": change(0.8, 0.8, 0, 0)},
        ace=(0.1, 0.05),
        chosen_flips=FlipCount(1_000_000, flips, None),
        matrix_flips=None,
        matrix_change={},
        everywhere_after=Honesty(0.935, 0.931),
        boundary_after=Honesty(0.82, 0.8),
    )


def text_of(verdict):
    parts = [verdict.headline, verdict.before, verdict.done, *verdict.changed, verdict.mask, *verdict.limits]
    return " ".join(parts).replace("\N{NO-BREAK SPACE}", " ")


def test_an_improvement_is_told_with_its_interval_and_its_cases():
    verdict = make_verdict(facts(), DIVISION)
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
    verdict = make_verdict(facts(ece, nll), DIVISION)
    assert verdict.tone == tone
    assert words in verdict.headline


def test_an_improvement_by_some_measures_only_is_called_that():
    verdict = make_verdict(facts(ece=(0.05, 0.049, -0.01, 0.01)), DIVISION)
    assert verdict.tone == "better"
    assert "more honest by some measures" in verdict.headline


def test_cases_that_are_tested_in_several_divisions_are_counted_so():
    assert "25 of 30 test cases, counted in each of 3 divisions" in text_of(
        make_verdict(facts(), DIVISION | {"repeats": 3})
    )


def test_a_changed_mask_is_counted_by_kind():
    verdict = make_verdict(facts(calibrator="ms", flips=(600, 300, 100)), DIVISION)
    assert "the mask changed in 0.1 % of the voxels" in text_of(verdict)
    assert "1,000 of 1,000,000 voxels (0.1 %): 300 became right, 600 became wrong, 100 stayed wrong" in text_of(verdict)
    assert "does not promise" in verdict.mask
    assert "did not change here" in make_verdict(facts(calibrator="ms"), DIVISION).mask


def test_nothing_chosen_is_said_plainly():
    verdict = make_verdict(facts(calibrator="identity"), DIVISION)
    assert "Nothing better was found" in verdict.headline
    assert (verdict.tone, verdict.changed) == ("same", [])


def test_limits_name_shifts_few_cases_and_what_was_not_tested():
    few = DIVISION | {"test": 12}
    shifted = replace(facts(ece=(0.2, 0.1, -0.2, -0.05)), task="heart_strong")
    text = text_of(make_verdict(facts(), few, [shifted]))
    assert "On heart_strong, without fitting again, the calibration error is 10.00 % (20.00 % without" in text
    assert "12 test cases are few" in text
    assert "was not tested here" not in text
    assert "another scanner" in text_of(make_verdict(facts(), DIVISION))
    assert "are few" not in text_of(make_verdict(facts(), DIVISION))


def test_confidences_that_were_only_measured_have_a_verdict_too():
    assert "overconfident by 3.0 points" in measured_verdict(Honesty(0.95, 0.92), DIVISION).headline
    assert "underconfident" in measured_verdict(Honesty(0.9, 0.92), DIVISION).headline
    assert "as sure as it is right" in measured_verdict(Honesty(0.92, 0.92), DIVISION).headline


def test_shares_near_the_ends_are_not_rounded_to_them():
    text = text_of(make_verdict(replace(facts(), everywhere=Honesty(0.99996, 0.5)), DIVISION))
    assert "was 99.996 % sure" in text
    sure = replace(facts(), everywhere=Honesty(0.99999999, 0.5))
    assert "more than 99.999 % sure" in text_of(make_verdict(sure, DIVISION))


def test_an_effect_needs_its_whole_interval_on_one_side():
    assert effect_of(change(1, 0, -2, -0.1)) == "better"
    assert effect_of(change(0.8, 0.9, 0.05, 0.2), "higher") == "better"
    assert effect_of(change(1, 0, -2, 0.0)) == "same"
    assert effect_of(Change(1, 0, Difference(None, None, None, 0, 3, 0, 0, 0))) == "same"
