"""What holds for every rule: texts, thresholds, and what labelled cases support."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

import segcal
from segcal.decisions import RULES, make_rule
from segcal.decisions.base import Ranked
from segcal.fitting.reference import read_numbers
from segcal.trust.sums import THRESHOLDS

LEARNED = [name for name, rule in RULES.items() if rule.promise]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("best", "no rule is named 'best'. Choose one of: argmax, dice, recall, precision, volume."),
        ("recall", "rule is 'recall', but a number between 0 and 1, as in recall=0.9, is needed"),
        ("recall=1", "rule is 'recall=1', but a number between 0 and 1"),
        ("precision=nan", "rule is 'precision=nan', but a number between 0 and 1"),
        ("recall=much", "rule is 'recall=much', but a number is needed after '='"),
        ("dice=0.9", "rule is 'dice=0.9', but 'dice' alone is needed"),
    ],
)
def test_other_texts_are_refused(text, said):
    with pytest.raises(segcal.InputError) as raised:
        make_rule(text)
    assert said in str(raised.value)


@given(st.lists(st.floats(0, 1), max_size=40))
def test_sizes_and_thresholds_belong_together(values):
    own = Ranked(-np.sort(-np.array(values)), sum(values), 0.0)
    for size in own.sizes:
        assert (np.array(values) >= own.threshold(int(size))).sum() == size


@given(st.lists(st.sampled_from(np.linspace(0, 1, 21).tolist()), max_size=40))
def test_the_volume_is_the_nearest_there_is(values):
    threshold = make_rule("volume").of_case(Ranked(-np.sort(-np.array(values)), sum(values), 0.0))
    size = (np.array(values) >= threshold).sum()
    sizes = [0, *((np.array(values) >= t).sum() for t in values)]
    assert abs(size - sum(values)) <= min(abs(each - sum(values)) for each in sizes) + 1e-9


@pytest.mark.parametrize("name", LEARNED)
def test_the_threshold_is_the_last_whose_bound_holds(name, fitted):
    for limit, curves in zip(make_rule(f"{name}=0.9").limits(fitted.reference), fitted.reference.curves, strict=True):
        losses = read_numbers(curves.missed if name == "recall" else curves.wrong, len(THRESHOLDS))
        held = [t for t, loss in zip(THRESHOLDS, losses, strict=True) if (40 * loss + 1) / 41 <= 0.1]
        assert curves.present == 40
        assert limit.threshold == (max(held) if name == "recall" else min(held))
        assert limit.guaranteed == 0.9


@pytest.mark.parametrize("name", LEARNED)
def test_too_few_labelled_cases_are_one_sentence(name, fitted, make_cases):
    with pytest.raises(segcal.InputError, match=r"a share of 0\.01 is asked for, but 40 reference groups .* 99 are"):
        segcal.decide(fitted, make_cases(1), f"{name}=0.99")
    with pytest.raises(segcal.InputError, match="has no reference cases, but what is promised is learned on labelled"):
        segcal.decide(segcal.fit("ts", make_cases(4)), make_cases(1), f"{name}=0.9")


def test_a_structure_that_few_labelled_cases_have_keeps_its_mask(make_cases):
    cases = make_cases(12, seed=3)
    labels = [np.where(case.labels == 2, 0, case.labels) if n else case.labels.numpy() for n, case in enumerate(cases)]
    logits = [case.logits.numpy() for case in cases]
    known = segcal.ArrayCases(logits, labels, kind="logits", ids=cases.ids, class_names=["out", "wall", "core"])
    learned = segcal.learn_trust(segcal.fit("ts", make_cases(8, prefix="fit")), known)
    found = segcal.decide(learned, make_cases(2, seed=4), "recall=0.8")
    wall, core = found.rows[:2]
    assert wall["guaranteed"] == 0.8
    assert (core["guaranteed"], core["threshold"], core["changed_voxels"]) == (None, None, 0)
    assert core["note"].endswith("1 labelled groups have the structure, and 4 are needed")
    assert "core: nothing is guaranteed, and the mask is the preserved one" in found.promise
