"""Suspicions about labels, about cases together, and about the members of an ensemble."""

import numpy as np
import pytest

from segcal.cases import ArrayCases
from segcal.cases.base import SINGLE_FOLDS
from segcal.cases.decision import decision_of
from segcal.cases.profile import profile_at
from segcal.cases.suspicion import (
    Suspicion,
    like_probabilities,
    misplaced,
    other_origin,
    paired,
    renumbered,
    single_folds,
    suspect_kind,
    turned,
    warn,
)
from segcal.cases.watch import FEW_CASES, Watch, look_at_members
from segcal.errors import SuspicionWarning

PROBS = np.random.default_rng(0).dirichlet(np.ones(3), 20).T.astype(np.float32)


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
    assert suspect_kind(cases) == [Suspicion(text, ("2",))]
    assert suspect_kind(cases.subset(["1"])) == []
    assert suspect_kind(ArrayCases([PROBS], kind="probs")) == []
    assert suspect_kind(ArrayCases([5 * PROBS])) == []
    assert like_probabilities([]) == []
    for pooling in ("mean_logits", "mean_probs"):  # before members are pooled
        assert suspect_kind(ArrayCases([[PROBS, PROBS[::-1]]], pooling=pooling, kind="logits"))[0].ids == ("0",)


def test_single_folds_are_named_where_they_are_fitted_and_where_something_else_meets_them():
    assert "the ensemble of all folds has other confidences" in str(*single_folds(SINGLE_FOLDS))
    assert single_folds("") == []
    (found,) = other_origin(SINGLE_FOLDS, "")
    assert "fitted on predictions of single folds, and these come from elsewhere" in found.text
    assert other_origin(SINGLE_FOLDS, SINGLE_FOLDS) == other_origin("", "") == other_origin("", SINGLE_FOLDS) == []


def seen(drawn, change=lambda number, labels: labels, **options):
    labels = [np.ascontiguousarray(change(number, labels)) for number, (_, labels) in enumerate(drawn)]
    cases = ArrayCases([logits for logits, _ in drawn], labels, **{"kind": "logits", **options})
    return [profile_at(case, decision_of(None, len(case.logits))) for case in cases]


def judged(profiles, classes=3):
    return [str(one) for one in misplaced(profiles, sum(one.confusion for one in profiles), classes)]


@pytest.mark.parametrize("space", [(24, 30), (9, 9, 9)])
def test_labels_that_fit_are_not_suspected(scenes, space):
    assert judged(seen(scenes(6, space))) == []


@pytest.mark.parametrize(
    ("space", "turn", "expected"),
    [
        ((24, 30), lambda labels: labels[::-1], "numpy.flip(labels, 0)"),
        ((24, 30), lambda labels: labels[::-1, ::-1], "numpy.flip(labels, (0, 1))"),
        ((24, 24), lambda labels: labels.T, "labels.transpose(1, 0)"),
        ((10, 12, 12), lambda labels: labels.transpose(0, 2, 1), "labels.transpose(0, 2, 1)"),
    ],
)
def test_turned_labels_are_turned_back_by_the_code_that_is_named(scenes, space, turn, expected):
    (text,) = judged(seen(scenes(6, space), lambda number, labels: turn(labels)))
    assert text.startswith(f"0, 1, 2, 3, 4 and 1 more: labels fit clearly better as {expected} (agreement 0.")
    what = "axes are exchanged" if "transpose" in expected else "one of the two is mirrored"
    assert text.endswith(f"): {what}. Bring scores and labels into one orientation.")


def test_a_single_case_that_is_turned_is_named_and_symmetric_labels_are_not(scenes):
    (text,) = judged(seen(scenes(8), lambda number, labels: labels[::-1] if number == 3 else labels))
    assert text.startswith("3: labels fit clearly better as numpy.flip(labels, 0)")
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
    drawn = scenes(4)  # one case alone has not changed places
    noise = np.random.default_rng(5).normal(size=drawn[0][0].shape).astype(np.float32)
    drawn[0], drawn[1] = (drawn[1][0], drawn[0][1]), (noise, drawn[1][1])
    assert paired(seen(drawn), 3) is None


def test_cases_of_other_shapes_are_not_compared(scenes):
    drawn = scenes(1, (24, 30)) + scenes(1, (30, 24), seed=1) + scenes(1, (20, 36), seed=2)
    assert judged(seen(drawn)) == []


def test_classes_in_another_order_are_named(scenes):
    order = np.array([0, 2, 1])
    (text,) = judged(seen(scenes(6), lambda number, labels: order[labels]))
    assert text == (
        "labels fit clearly better with their classes renumbered (label 1 is predicted as 2, label 2 is predicted as 1)"
        ". Map one of the two numberings."
    )
    assert renumbered(np.array([[0, 30], [30, 0]])) is None  # of few voxels nothing is said


def test_the_best_explanation_is_given_alone():
    """Mirrored stripes also look renumbered: what is above is class 0, what is below class 1."""
    rng = np.random.default_rng(0)
    drawn = []
    for height in (9, 11, 12, 13, 14, 15):
        labels = (np.arange(24)[:, None] >= height).astype(np.uint8).repeat(30, 1)
        labels[2:5, 3:9], labels[18:22, 20:28] = 1, 0
        own = np.stack([labels == 0, labels == 1]) * 2.5
        drawn.append(((own + rng.normal(size=own.shape)).astype(np.float32), labels))
    profiles = seen(drawn, lambda number, labels: labels[::-1])
    table = sum(one.confusion for one in profiles)
    assert turned(profiles).fit > renumbered(table).fit
    (text,) = judged(profiles, 2)
    assert "numpy.flip(labels, 0)" in text


def watched(drawn, parts=None, classes=3, **options):
    watch = Watch(classes)
    for number, profile in enumerate(seen(drawn, **options)):
        watch.add(profile, "" if parts is None else parts[number])
    return [str(one) for one in watch.found()]


def test_accuracy_near_chance_is_said_with_what_chance_gives(scenes):
    rng = np.random.default_rng(1)
    drawn = [(logits, rng.permutation(labels.reshape(-1)).reshape(labels.shape)) for logits, labels in scenes(6)]
    (text,) = watched(drawn)
    shares = [[np.bincount(x.reshape(-1), minlength=3) / x.size for x in (z.argmax(0), y)] for z, y in drawn]
    right = np.mean([(z.argmax(0) == y).mean() for z, y in drawn])
    assert text == (
        f"the predicted class is right in {right:.1%} of the voxels, and random labels would be right in "
        f"{np.mean([p @ q for p, q in shares]):.1%}: scores and labels hardly belong together. "
        "Look at one case of both."
    )


def test_good_cases_mostly_background_few_voxels_and_one_class_give_no_suspicion(scenes):
    assert watched(scenes(6)) == []
    rng = np.random.default_rng(2)
    labels = np.zeros((30, 40), np.uint8)
    labels[5:9, 6:12] = 1
    own = 2.5 * np.stack([labels == 0, labels == 1])
    assert watched([((own + rng.normal(size=own.shape)).astype(np.float32), labels) for _ in range(4)], classes=2) == []
    for truth in (rng.integers(0, 3, 100), np.zeros(2000, int)):
        assert watched([(rng.normal(size=(3, truth.size)).astype(np.float32), truth)]) == []


def test_the_same_scores_under_two_names_or_in_two_parts(scenes):
    drawn = scenes(4)
    drawn[2] = (drawn[0][0].copy(), drawn[2][1])
    text = "the same scores have several names (a = c) and count several times. Remove the copies."
    assert text in watched(drawn, ids=["a", "b", "c", "d"])
    drawn = scenes(3)
    (text,) = watched([*drawn, drawn[1]], ["calibration"] * 3 + ["validation"], ids=["a", "b", "c", "d"])
    assert text == (
        "the same scores are in calibration and in validation (b = d), so what is learned is judged on itself. "
        "Remove one of each, or declare both as one group."
    )


def test_one_name_in_two_parts_is_two_cases(scenes):
    watch = Watch(3)
    for drawn, part in zip(scenes(2), ["calibration", "validation"], strict=True):
        watch.add(*seen([drawn], ids=["a"]), part)
    assert watch.found() == []


def test_cases_without_a_voxel_that_counts_are_named(scenes):
    drawn = scenes(4)
    drawn[1] = (drawn[1][0], np.full_like(drawn[1][1], 9))
    assert watched(drawn, ignore=9) == [
        "1: no voxel counts. Check the ignore label and the mask, or leave the case out."
    ]


def test_what_is_kept_is_small_whatever_the_size_of_the_cases(scenes):
    watch = Watch(3)
    watch.add(*seen(scenes(1, (400, 500))))
    (kept,) = watch._profiles.values()
    assert kept.confusion is None
    assert sum(part.nbytes for part in kept.thumbnail) <= 4 * 4096


def ensemble(scenes, members, count=5):
    """Cases of several members: each is a function of scores and of a number that makes them its own."""
    noise = np.random.default_rng(0).normal(size=(len(members), 3, 24, 30)).astype(np.float32)
    logits = [[make(z, noise[number]) for number, make in enumerate(members)] for z, _ in scenes(count)]
    return ArrayCases(logits, pooling="mean_logits", kind="logits")


def own(scores, noise):
    return scores + 0.3 * noise


def reordered(scores, noise):
    return own(scores, noise)[[0, 2, 1]]


def copied(scores, noise):
    return scores


def test_good_members_give_no_suspicion_and_one_that_is_there_twice_is_named(scenes):
    assert look_at_members(ensemble(scenes, [own, own, own])) == []
    assert look_at_members(ArrayCases([z for z, _ in scenes(2)])) == []
    (found,) = look_at_members(ensemble(scenes, [copied, own, copied]))
    assert str(found) == (
        "members hold the same scores (member 0 = member 2) and count several times. Leave the copies out."
    )


@pytest.mark.parametrize(
    ("members", "which"),
    [
        ([own, own, reordered], "member 2 has its classes in another order than member 0"),
        ([reordered, own, own], "member 0 has its classes in another order than all others"),
        ([own, reordered], "member 1 has its classes in another order than member 0"),
    ],
)
def test_a_member_with_other_numbers_is_named(scenes, members, which):
    (found,) = look_at_members(ensemble(scenes, members))
    assert str(found) == f"{which} (1 for 2, 2 for 1). Export all members alike."


def test_a_few_cases_are_read_and_those_that_cannot_be_are_left_out(scenes, monkeypatch):
    cases = ensemble(scenes, [copied, copied], count=9)
    cases.raw("4").logits[1] = cases.raw("4").logits[1][:, :5, :5]
    cases.raw("8").logits[1] = np.full((3, 24, 30), np.nan, np.float32)
    read, original = [], ArrayCases.member_logits
    monkeypatch.setattr(ArrayCases, "member_logits", lambda self, key: read.append(key) or original(self, key))
    (found,) = look_at_members(cases.subset(["0", "1", "2", "3", "8"]))
    assert "member 0 = member 1" in str(found)
    assert len(read) == FEW_CASES
