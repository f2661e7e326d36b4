import numpy as np
import pytest

from segcal.cases import ArrayCases
from segcal.cases.decision import decision_of
from segcal.cases.glance import glance_at
from segcal.cases.watch import FEW_CASES, Watch, look_at_members


def look(case):
    return glance_at(case, decision_of(None, len(case.logits)))


def judged(drawn, parts=None, ids=None, **options):
    cases = ArrayCases([z for z, _ in drawn], [y for _, y in drawn], ids=ids, **{"kind": "logits", **options})
    watch = Watch(cases.num_classes)
    for number, case in enumerate(cases):
        watch.add(look(case), "" if parts is None else parts[number])
    return [str(one) for one in watch.found()]


def test_good_cases_give_no_suspicion(scenes):
    assert judged(scenes(6)) == []


def test_accuracy_near_chance_is_said_with_what_chance_gives(scenes):
    rng = np.random.default_rng(1)
    drawn = [(logits, rng.permutation(labels.reshape(-1)).reshape(labels.shape)) for logits, labels in scenes(6)]
    (text,) = judged(drawn)
    shares = [[np.bincount(x.reshape(-1), minlength=3) / x.size for x in (z.argmax(0), y)] for z, y in drawn]
    right = np.mean([(z.argmax(0) == y).mean() for z, y in drawn])
    assert text == (
        f"the predicted class is right in {right:.1%} of the voxels, and labels strewn at random would be right in "
        f"{np.mean([p @ q for p, q in shares]):.1%}: scores and labels hardly belong together. "
        "Look at one case of both."
    )


def test_mostly_background_is_not_near_chance(scenes):
    rng = np.random.default_rng(2)
    drawn = []
    for _ in range(4):
        labels = np.zeros((30, 40), np.uint8)
        labels[5:9, 6:12] = 1
        own = 2.5 * np.stack([labels == 0, labels == 1])
        drawn.append(((own + rng.normal(size=own.shape)).astype(np.float32), labels))
    assert judged(drawn) == []


@pytest.mark.parametrize("labels", ["few", "one class"])
def test_few_voxels_or_one_class_are_no_evidence(labels, scenes):
    rng = np.random.default_rng(3)
    size = 100 if labels == "few" else 2000
    truth = rng.integers(0, 3, size) if labels == "few" else np.zeros(size, int)
    assert judged([(rng.normal(size=(3, size)).astype(np.float32), truth)]) == []


def test_the_same_scores_under_two_names(scenes):
    drawn = scenes(4)
    drawn[2] = (drawn[0][0].copy(), drawn[2][1])
    text = "the same scores have several names (a = c) and count several times. Remove the copies."
    assert text in judged(drawn, ids=["a", "b", "c", "d"])


def test_the_same_scores_in_calibration_and_validation(scenes):
    drawn = scenes(3)
    drawn.append(drawn[1])
    (text,) = judged(drawn, parts=["calibration"] * 3 + ["validation"], ids=["a", "b", "c", "d"])
    assert text == (
        "the same scores are in calibration and in validation (b = d), so what is learned is judged on itself. "
        "Remove one of each, or declare both as one group."
    )


def test_one_name_in_two_parts_is_two_cases(scenes):
    drawn = scenes(2)
    watch = Watch(3)
    for number, part in enumerate(["calibration", "validation"]):
        watch.add(look(next(iter(ArrayCases([drawn[number][0]], [drawn[number][1]], ids=["a"])))), part)
    assert watch.found() == []


def test_cases_without_a_voxel_that_counts_are_named(scenes):
    drawn = scenes(4)
    drawn[1] = (drawn[1][0], np.full_like(drawn[1][1], 9))
    assert judged(drawn, ignore=9) == [
        "1: no voxel counts. Check the ignore label and the mask, or leave the case out."
    ]


def test_probabilities_declared_as_logits_are_named(scenes):
    drawn = [(np.exp(z) / np.exp(z).sum(0), y) for z, y in scenes(2)]
    (text,) = judged(drawn)
    assert text.startswith("0, 1: scores are declared as logits, but all lie in 0 to 1 and sum to 1.")


def test_what_is_kept_is_small_whatever_the_size_of_the_cases(scenes):
    watch = Watch(3)
    ((logits, labels),) = scenes(1, (1200, 1300))
    watch.add(look(next(iter(ArrayCases([logits], [labels])))))
    (kept,) = watch._glances.values()
    assert kept.confusion is None
    assert sum(part.nbytes for part in kept.thumbnail) <= 4 * 4096


def ensemble(scenes, members, count=5):
    """Cases of several members: each is a function of scores and of a number that makes them its own."""
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(len(members), 3, 24, 30)).astype(np.float32)
    logits = [[make(z, noise[number]) for number, make in enumerate(members)] for z, _ in scenes(count)]
    return ArrayCases(logits, pooling="mean_logits", kind="logits")


def own(scores, noise):
    return scores + 0.3 * noise


def renumbered(scores, noise):
    return own(scores, noise)[[0, 2, 1]]


def copied(scores, noise):
    return scores


def test_good_members_give_no_suspicion(scenes):
    assert look_at_members(ensemble(scenes, [own, own, own])) == []
    assert look_at_members(ArrayCases([z for z, _ in scenes(2)])) == []


def test_a_member_that_is_there_twice_is_named(scenes):
    (found,) = look_at_members(ensemble(scenes, [copied, own, copied]))
    assert str(found) == (
        "members hold the same scores (member 0 = member 2) and count several times. Leave the copies out."
    )


@pytest.mark.parametrize(
    ("members", "which"),
    [
        ([own, own, renumbered], "member 2 has its classes in another order than member 0"),
        ([renumbered, own, own], "member 0 has its classes in another order than all others"),
        ([own, renumbered], "member 1 has its classes in another order than member 0"),
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
