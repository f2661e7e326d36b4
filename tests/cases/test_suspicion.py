import numpy as np
import pytest

from segcal.cases import ArrayCases
from segcal.cases.base import SINGLE_FOLDS
from segcal.cases.decision import decision_of
from segcal.cases.glance import glance_at
from segcal.cases.suspicion import (
    Suspicion,
    doubtful_kind,
    like_probabilities,
    misplaced,
    other_origin,
    paired,
    renumbered,
    single_folds,
    turned,
    warn,
)
from segcal.errors import SuspicionWarning

PROBS = np.random.default_rng(0).dirichlet(np.ones(3), 20).T.astype(np.float32)


def look(case):
    return glance_at(case, decision_of(None, len(case.logits)))


def test_a_few_cases_are_named_and_the_others_counted():
    assert str(Suspicion("odd.", ("a", "b"))) == "a, b: odd."
    assert str(Suspicion("odd.", tuple("abcdefg"))) == "a, b, c, d, e and 2 more: odd."
    assert str(Suspicion("odd.")) == "odd."


def test_each_is_one_warning_at_the_line_that_called():
    with pytest.warns(SuspicionWarning) as found:
        warn([Suspicion("one."), Suspicion("two.", ("a",))])
    assert [str(one.message) for one in found] == ["one.", "a: two."]
    assert {one.filename for one in found} == {__file__}


def test_probabilities_declared_as_logits_are_seen_in_the_first_case_that_can_be_read():
    broken = np.full((3, 20), np.nan, np.float32)
    cases = ArrayCases([PROBS, broken, PROBS], kind="logits").subset(["1", "2"])
    text = "scores are declared as logits, but all lie in 0 to 1 and sum to 1. Declare kind='probs' if so."
    assert doubtful_kind(cases) == [Suspicion(text, ("2",))]
    assert doubtful_kind(cases.subset(["1"])) == []
    assert doubtful_kind(ArrayCases([PROBS], kind="probs")) == []
    assert doubtful_kind(ArrayCases([5 * PROBS])) == []
    assert like_probabilities([]) == []


@pytest.mark.parametrize("pooling", ["mean_logits", "mean_probs"])
def test_they_are_seen_before_members_are_pooled(pooling):
    assert doubtful_kind(ArrayCases([[PROBS, PROBS[::-1]]], pooling=pooling, kind="logits"))[0].ids == ("0",)


def test_single_folds_are_named_where_they_are_fitted_and_where_something_else_meets_them():
    assert "the ensemble of all folds has other confidences" in str(*single_folds(SINGLE_FOLDS))
    assert single_folds("") == []
    assert "fitted on predictions of single folds, and these come from elsewhere" in str(
        *other_origin(SINGLE_FOLDS, "")
    )
    assert other_origin(SINGLE_FOLDS, SINGLE_FOLDS) == other_origin("", "") == other_origin("", SINGLE_FOLDS) == []


def seen(drawn, change=lambda number, labels: labels):
    labels = [np.ascontiguousarray(change(number, labels)) for number, (_, labels) in enumerate(drawn)]
    return [look(case) for case in ArrayCases([logits for logits, _ in drawn], labels, kind="logits")]


def judged(glances, classes=3):
    return [str(one) for one in misplaced(glances, sum(one.confusion for one in glances), classes)]


@pytest.mark.parametrize("space", [(24, 30), (24, 24), (12, 10, 8), (9, 9, 9)])
def test_labels_that_fit_are_not_suspected(scenes, space):
    assert judged(seen(scenes(6, space))) == []


@pytest.mark.parametrize(
    ("space", "turn", "expected"),
    [
        ((24, 30), lambda labels: labels[::-1], "numpy.flip(labels, 0)"),
        ((24, 30), lambda labels: labels[:, ::-1], "numpy.flip(labels, 1)"),
        ((24, 30), lambda labels: labels[::-1, ::-1], "numpy.flip(labels, (0, 1))"),
        ((24, 24), lambda labels: labels.T, "labels.transpose(1, 0)"),
        ((12, 10, 8), lambda labels: labels[:, :, ::-1], "numpy.flip(labels, 2)"),
        ((10, 12, 12), lambda labels: labels.transpose(0, 2, 1), "labels.transpose(0, 2, 1)"),
    ],
)
def test_turned_labels_are_turned_back_by_the_code_that_is_named(scenes, space, turn, expected):
    (text,) = judged(seen(scenes(6, space), lambda number, labels: turn(labels)))
    assert text.startswith(f"0, 1, 2, 3, 4 and 1 more: labels fit clearly better as {expected} (agreement 0.")
    what = "axes are exchanged" if "transpose" in expected else "one of the two is mirrored"
    assert text.endswith(f"): {what}. Bring scores and labels into one orientation.")


def test_a_single_case_that_is_turned_is_named(scenes):
    (text,) = judged(seen(scenes(8), lambda number, labels: labels[::-1] if number == 3 else labels))
    assert text.startswith("3: labels fit clearly better as numpy.flip(labels, 0)")


def test_symmetric_labels_are_not_suspected(scenes):
    drawn = [(np.concatenate([z, z[:, ::-1]], 1), np.concatenate([y, y[::-1]])) for z, y in scenes(6)]
    assert judged(seen(drawn)) == []


def test_labels_of_other_cases_are_named_with_their_cases(scenes):
    drawn = scenes(6)
    shifted = [(logits, drawn[(number + 1) % 6][1]) for number, (logits, _) in enumerate(drawn)]
    (text,) = judged(seen(shifted))
    assert text == (
        "0, 1, 2, 3, 4 and 1 more: scores fit the labels of another case clearly better than their own (0 those of 5, "
        "1 those of 0, 2 those of 1, 3 those of 2, 4 those of 3 and 1 more). Check their names."
    )
    swapped = [(drawn[{1: 4, 4: 1}.get(number, number)][0], labels) for number, (_, labels) in enumerate(drawn)]
    assert judged(seen(swapped))[0].startswith("1, 4: scores fit the labels of another case")


def test_a_network_that_fails_on_a_case_is_not_a_pairing(scenes):
    drawn = scenes(6)
    wrong = drawn[0][0] * 0.1 + drawn[3][0]  # it saw something like case 3 in cases 0 and 1
    drawn[0], drawn[1] = (wrong, drawn[0][1]), (wrong + 0.1, drawn[1][1])
    assert paired(seen(drawn), 3) is None


def test_one_case_alone_has_not_changed_places(scenes):
    drawn = scenes(4)
    noise = np.random.default_rng(5).normal(size=drawn[0][0].shape).astype(np.float32)
    drawn[0], drawn[1] = (drawn[1][0], drawn[0][1]), (noise, drawn[1][1])
    assert paired(seen(drawn), 3) is None


def test_cases_of_other_shapes_are_not_compared(scenes):
    drawn = scenes(1, (24, 30)) + scenes(1, (30, 24), seed=1) + scenes(1, (20, 36), seed=2)
    assert judged(seen(drawn)) == []


def test_classes_in_another_order_are_named(scenes):
    order = np.array([0, 2, 1])
    glances = seen(scenes(6), lambda number, labels: order[labels])
    (text,) = judged(glances)
    assert text == (
        "labels fit clearly better with their classes renumbered (label 1 is predicted as 2, label 2 is predicted as 1)"
        ". Map one of the two numberings."
    )
    assert renumbered(np.array([[0, 30], [30, 0]])) is None  # of few voxels nothing is said


def test_the_best_explanation_is_given_alone(scenes):
    """Mirrored stripes also look renumbered: what is above is class 0, what is below class 1."""
    rng = np.random.default_rng(0)
    drawn = []
    for height in (9, 11, 12, 13, 14, 15):
        labels = (np.arange(24)[:, None] >= height).astype(np.uint8).repeat(30, 1)
        labels[2:5, 3:9], labels[18:22, 20:28] = 1, 0
        own = np.stack([labels == 0, labels == 1]) * 2.5
        drawn.append(((own + rng.normal(size=own.shape)).astype(np.float32), labels))
    glances = seen(drawn, lambda number, labels: labels[::-1])
    table = sum(one.confusion for one in glances)
    assert renumbered(table) is not None
    assert turned(glances).fit > renumbered(table).fit
    (text,) = judged(glances, 2)
    assert "numpy.flip(labels, 0)" in text


def test_cases_without_labels_or_of_one_class_say_nothing(scenes):
    drawn = scenes(4)
    assert judged(seen([(logits, np.zeros_like(labels)) for logits, labels in drawn])) == []
    assert misplaced([look(case) for case in ArrayCases([logits for logits, _ in drawn])], None, 3) == ()
