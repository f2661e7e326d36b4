"""Mistakes that give plausible numbers: each is named when it is planted, and nothing is said where there is none."""

import os
import re
import warnings
from pathlib import Path

import numpy as np
import pytest

import segcal
from segcal.cases.kinds import LIKE_BYTES, LIKE_MASKS, LIKE_PARTS, LIKE_PROBS, LIKE_SQUASHED, kind_warning_of
from segcal.cases.profile import Shift
from segcal.errors import InputError, SuspicionWarning

REAL = Path(os.environ.get("SEGCAL_REAL", Path(__file__).parents[3] / "real"))
DECLARED = {"cardiac": {"label_axes": "zyx", "groups": r"(patient\d+)"}, "roads": {}, "camvid": {"ignore": 11}}
CLASSES = 3


def softmax(logits):
    shifted = np.exp(logits - logits.max(0))
    return shifted / shifted.sum(0)


def scene(seed, shape=(40, 50)):
    """Return labels of three classes, two discs on a background, and logits of five members that are mostly right."""
    rng = np.random.default_rng(seed)
    place = np.stack(np.meshgrid(*map(np.arange, shape), indexing="ij"))
    labels = np.zeros(shape, np.int64)
    for number in (1, 2):
        centre = rng.uniform(0.25, 0.75, 2) * shape
        labels[((place - centre[:, None, None]) ** 2).sum(0) < rng.uniform(50, 120)] = number
    truth = 3.0 * (labels == np.arange(CLASSES)[:, None, None])
    return labels, [(truth + rng.normal(size=truth.shape)).astype(np.float32) for _ in range(5)]


def scenes(count=6):
    return [scene(seed) for seed in range(count)]


def said(drawn, change_member=None, change_labels=None, **more):
    """Return the warnings of check, and that fit gives the same."""
    members = [[(change_member or (lambda z, m: z))(z, m) for m, z in enumerate(each)] for _, each in drawn]
    labels = [(change_labels or (lambda y: y))(y) for y, _ in drawn]
    if len({id(z) for z in members[0]}) == 1:
        members = [each[0] for each in members]
    cases = segcal.ArrayCases(members, labels, **{"kind": "logits", "pooling": "mean_logits", **more})
    found = [str(problem.text) for problem in segcal.check(cases).problems if problem.severity == "warning"]
    found = [text for text in found if "cases are few" not in text]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        segcal.fit("ts", cases)
    fitted = [str(one.message) for one in caught if issubclass(one.category, SuspicionWarning)]
    fitted = [text.split(": ", 1)[1] if text[0].isdigit() else text for text in fitted]
    numbers = re.compile(r"-?\d\.\d+")  # of members, fit looks at a few cases
    assert [numbers.sub("", text) for text in fitted] == [numbers.sub("", text) for text in found]
    return found


def test_nothing_is_said_of_what_is_as_it_should_be():
    assert said(scenes()) == []
    assert said(scenes(), lambda z, m: softmax(z), kind="probs") == []
    assert said(scenes(), lambda z, m: np.log(softmax(z))) == []  # logits too


BROKEN = {
    "mirrored": lambda z: z[:, :, ::-1].copy(),
    "shifted": lambda z: np.roll(z, 6, 1),
    "at chance": lambda z: np.random.default_rng(9).permuted(z.reshape(CLASSES, -1), axis=1).reshape(z.shape),
    "constant": lambda z: np.where(np.arange(CLASSES)[:, None, None] == 0, 5, z).astype(np.float32),
}


@pytest.mark.parametrize(("how", "number"), list(zip(BROKEN, (0, 3, 4, 1), strict=True)))
def test_a_member_that_disagrees_with_all_others_is_named(how, number):
    (text,) = said(scenes(), lambda z, m: BROKEN[how](z) if m == number else z)
    assert text.startswith(f"member {number} disagrees with the other members (agreement ")
    assert text.endswith("): it is broken, mirrored, shifted or of another task. Look at it.")


def test_a_member_with_its_classes_in_another_order_is_named_with_the_order():
    (text,) = said(scenes(), lambda z, m: z[[0, 2, 1]] if m == 4 else z)
    assert (
        text == "member 4 has its classes in another order than member 0 (1 for 2, 2 for 1). Export all members alike."
    )


def test_of_two_members_either_may_be_broken():
    drawn = [(labels, members[:2]) for labels, members in scenes()]
    assert said(drawn) == []
    found = said(drawn, lambda z, m: BROKEN["at chance"](z) if m == 1 else z)
    assert any(text.startswith("member 0 and member 1 hardly agree (agreement ") for text in found)


def large(factor):
    return 8 * factor * scene(3)[1][0]


SHARP = softmax(large(1))
KINDS = {
    "softmax as logits": (SHARP, "logits", LIKE_PROBS),
    "percent as logits": (100 * SHARP, "logits", LIKE_PARTS.format(100)),
    "bytes of softmax as logits": (np.round(255 * SHARP), "logits", LIKE_PARTS.format(255)),
    "bytes of sigmoids as logits": (np.round(255 / (1 + np.exp(-large(1)))), "logits", LIKE_BYTES),
    "sigmoids as logits": (1 / (1 + np.exp(-large(1))), "logits", LIKE_SQUASHED),
    "softmax of a softmax": (softmax(SHARP), "probs", LIKE_SQUASHED),
    "log of softmax of a softmax": (np.log(softmax(SHARP)), "logits", LIKE_SQUASHED),
    "masks as probabilities": (np.eye(CLASSES)[scene(3)[0]].transpose(2, 0, 1), "probs", LIKE_MASKS),
    "plain masks as logits": (np.eye(CLASSES)[scene(3)[0]].transpose(2, 0, 1), "logits", LIKE_MASKS),
    "masks as logits": (9 * np.eye(CLASSES)[scene(3)[0]].transpose(2, 0, 1) - 3, "logits", LIKE_MASKS),
}


@pytest.mark.parametrize("what", KINDS)
def test_scores_of_another_kind_are_named_and_files_with_their_path(what, tmp_path):
    values, kind, expected = KINDS[what]
    for name, array in (("p", values.astype(np.float32)), ("y", scene(3)[0].astype(np.uint8))):
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "a.npy", array)
    found = segcal.check(tmp_path / "p", tmp_path / "y", kind=kind)
    assert f"{tmp_path / 'p' / 'a.npy'}: {expected}" in {problem.text for problem in found.problems}
    scores, labels = [np.roll(values, number, 2).astype(np.float32) for number in range(3)], [scene(3)[0]] * 3
    cases = segcal.ArrayCases(scores, labels, kind=kind)
    assert {case.kind_warning for case in cases} == {expected}
    assert expected in {problem.text for problem in segcal.check(cases).problems}
    with pytest.warns(SuspicionWarning) as caught:
        segcal.fit("ts", cases)
    assert f"0, 1, 2: {expected}" in {str(one.message) for one in caught}


@pytest.mark.parametrize("kind", ["probs", "sigmoid"])
def test_logits_of_another_kind_are_refused(kind):
    with pytest.raises(InputError, match="probabilities lie between 0 and 1"):
        segcal.ArrayCases([large(1)[:1] if kind == "sigmoid" else large(1)], kind=kind).checked("0")


def test_a_few_voxels_may_look_like_anything():
    import torch

    assert kind_warning_of(torch.eye(3), "probs") == ""
    assert kind_warning_of(torch.zeros(3, 0), "logits") == ""


@pytest.mark.parametrize(("axis", "by"), [(0, 3), (1, -4)])
def test_labels_that_are_shifted_are_named_with_the_way_back(axis, by):
    (text,) = said(scenes(), change_labels=lambda y: np.roll(y, by, axis))
    assert text.startswith(f"labels fit clearly better {Shift(axis, -by)} (agreement ")
    assert text.endswith("): one of the two is shifted. Check crops and origins.")


def opened(task, every, change=None):
    """Return cases of a real ensemble, of which one member or the labels are changed."""
    folders = sorted((REAL / "predictions" / task).glob("member_*"))
    labels = REAL / task / "labels"
    complete = len(folders) == 5 and len({len(list(each.glob("*.npy"))) for each in folders}) == 1
    if not (complete and labels.is_dir()):
        pytest.skip(f"{REAL} has no complete ensemble {task}")
    cases = segcal.open_cases(folders, labels, kind="logits", pooling="mean_logits", **DECLARED[task])
    cases = cases.subset(cases.ids[::every])
    if change is None:
        return cases
    kept = {case_id: ([z.numpy() for z in cases.member_logits(case_id)], cases.read(case_id)) for case_id in cases.ids}
    drawn = [change([z.astype(np.float32) for z in members], case.labels.numpy()) for members, case in kept.values()]
    return segcal.ArrayCases(*zip(*drawn, strict=True), kind="logits", pooling="mean_logits", ignore=-1)


def spoken(cases):
    known = ("the same scores have several names", "cases are few", "is in no label map")
    found = [problem.text for problem in segcal.check(cases).problems if problem.severity != "note"]
    return [text for text in found if not any(one in text for one in known)]


@pytest.mark.data
@pytest.mark.parametrize("task", DECLARED)
def test_nothing_is_said_of_a_real_ensemble(task):
    assert spoken(opened(task, 1)) == []


def other_member(how):
    return lambda members, labels: ([*members[:-1], np.ascontiguousarray(how(members[-1]))], labels)


def all_members(how):
    return lambda members, labels: ([how(z) for z in members], labels)


PLANTED = {
    "mirrored member": (other_member(lambda z: z[..., ::-1]), "member 4 disagrees with the other members"),
    "shifted member": (
        other_member(lambda z: np.roll(z, z.shape[-1] // 16, -1)),
        "member 4 disagrees with the other members",
    ),
    "permuted member": (other_member(lambda z: np.roll(z, 1, 0)), "member 4 has its classes in another order"),
    "shifted labels": (
        lambda members, labels: (members, np.roll(labels, 4, -1)),
        "labels fit clearly better moved by -",
    ),
    "softmax as logits": (all_members(softmax), LIKE_PROBS),
    "percent as logits": (all_members(lambda z: 100 * softmax(z)), LIKE_PARTS.format(100)),
    "sigmoids as logits": (all_members(lambda z: 1 / (1 + np.exp(-z))), LIKE_SQUASHED),
    "masks": (all_members(lambda z: np.moveaxis(np.eye(len(z), dtype=np.float32)[z.argmax(0)], -1, 0)), LIKE_MASKS),
}


@pytest.mark.data
@pytest.mark.parametrize("task", DECLARED)
@pytest.mark.parametrize("fault", PLANTED)
def test_what_is_planted_in_a_real_ensemble_is_named(task, fault):
    change, expected = PLANTED[fault]
    every = {"cardiac": 14, "roads": 14, "camvid": 48}[task]
    assert any(expected in text for text in spoken(opened(task, every, change)))
