import numpy as np
import pytest
from segcal.benchmark.comparisons import compare, compare_repeats, find_pipeline, pairs_of

from segcal.benchmark.pipelines import Pipeline
from segcal.errors import InputError
from segcal.metrics import find_metrics
from segcal.resample import Draws

RNG = np.random.default_rng(0)
BASE = [RNG.uniform(0.2, 0.4, size=20) for _ in range(3)]
FIRST, SECOND = Pipeline("mean_logits", "ms"), Pipeline("mean_logits", "ms_c")


PAIR = [(FIRST.title, SECOND.title, "translation invariance")]


def sentence(nll, dice, ace):
    values = {
        FIRST.title: {"nll": BASE, "dice": BASE},
        SECOND.title: {"nll": [b + nll for b in BASE], "dice": [b + dice for b in BASE]},
    }
    pooled = {FIRST.title: {"ace": [0.1, 0.2, 0.3]}, SECOND.title: {"ace": ace}}
    metrics = find_metrics(("nll", "dice", "ace"))
    (found,) = compare("roads", "", PAIR, values, pooled, metrics, Draws([20, 20, 20], 200), 0.95)
    return found


def test_a_clear_gain_is_better_in_all_cases():
    found = sentence(nll=-0.05, dice=0.02, ace=[0.05, 0.15, 0.2])
    assert {name: each.verdict for name, each in found.metrics.items()} == dict.fromkeys(
        ("nll", "ace", "dice"), "better"
    )
    assert found.sentence == (
        "roads, ms_c(mean_logits) against ms(mean_logits): better on NLL (-0.0500 [-0.0500, -0.0500], better in 60 and "
        "worse in 0 of 60 cases), ACE (-0.0667 [-0.1000, -0.0500], better in 3 and worse in 0 of 3 repeats) and DSC "
        "(+2.00 points [+2.00, +2.00], better in 60 and worse in 0 of 60 cases)."
    )


def test_a_clear_loss_is_worse_and_a_gain_beside_it_is_said_too():
    found = sentence(nll=0.05, dice=0.02, ace=[0.2, 0.3, 0.4])
    text = found.sentence
    assert ": better on DSC (+2.00 points" in text
    assert "; worse on NLL (+0.0500 [+0.0500, +0.0500], better in 0 and worse in 60 of 60 cases) and ACE (" in text
    assert "no difference" not in text


def test_equal_numbers_are_no_difference():
    found = sentence(nll=0.0, dice=0.0, ace=[0.1, 0.2, 0.3])
    assert found.sentence.startswith(
        "roads, ms_c(mean_logits) against ms(mean_logits): no difference on any metric: NLL (+0.0000 [+0.0000, +0.0000]"
    )


def test_noise_around_zero_is_no_difference():
    noise = [RNG.normal(0, 0.05, size=20) for _ in range(3)]
    found = sentence(nll=0.0, dice=-0.01, ace=[0.05, 0.25, 0.3])
    assert found.metrics["ace"].verdict == "no difference"
    assert found.metrics["dice"].verdict == "worse"
    values = {
        FIRST.title: {"nll": BASE},
        SECOND.title: {"nll": [b + n - n.mean() for b, n in zip(BASE, noise, strict=True)]},
    }
    (found,) = compare("t", "", PAIR, values, {}, find_metrics(("nll",)), Draws([20] * 3, 200), 0.95)
    assert found.metrics["nll"].verdict == "no difference"


def test_a_number_that_is_nowhere_defined_is_said_to_be_so():
    found = compare_repeats([None, 0.1], [0.2, None], "lower")
    assert found.verdict == "not defined"
    comparison = sentence(nll=-0.05, dice=np.nan, ace=[None, None, None])
    assert comparison.sentence.endswith("; not defined: ACE and DSC.")


def test_pairs_of_which_one_is_missing_are_left_out():
    assert pairs_of([FIRST], []) == []
    assert pairs_of([FIRST, SECOND], []) == [(FIRST.title, SECOND.title, "translation invariance")]
    assert pairs_of([FIRST], [(FIRST.title, "gone(mean_logits)")]) == []


def test_a_pair_that_was_asked_for_comes_first_and_once():
    asked = [(SECOND.title, FIRST.title), (FIRST.title, SECOND.title)]
    assert pairs_of([FIRST, SECOND], asked) == [(*pair, "asked for") for pair in asked]


def test_a_pipeline_is_named_by_its_title_or_by_a_calibrator_that_only_one_has():
    listed = [FIRST, Pipeline("mean_probs", "ts"), Pipeline("mean_logits", "ts")]
    assert find_pipeline("ms", listed) == "ms(mean_logits)"
    assert find_pipeline("ts(mean_probs)", listed) == "ts(mean_probs)"
    known = r"Choose from: ms\(mean_logits\), ts\(mean_probs\), ts\(mean_logits\)\."
    with pytest.raises(InputError, match=r"compare names 'ts', but 2 pipelines are called so\. " + known):
        find_pipeline("ts", listed)
    with pytest.raises(InputError, match=r"compare names 'no', but no pipeline is called so\. " + known):
        find_pipeline("no", listed)


def test_two_cases_have_a_difference_and_no_verdict():
    values = {FIRST.title: {"nll": [np.array([0.1, 0.2])]}, SECOND.title: {"nll": [np.array([0.3, 0.4])]}}
    (found,) = compare("t", "", PAIR, values, {}, find_metrics(("nll",)), Draws([2], 200), 0.95)
    assert found.metrics["nll"].difference.value == pytest.approx(0.2)
    assert found.metrics["nll"].verdict == "not defined"
    assert found.sentence.endswith(": too few for an interval: NLL.")
