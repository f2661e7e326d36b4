"""What is kept of cases that were read: the same numbers, within the room that there is, and files opened once."""

import pickle

import numpy as np
import pytest
import torch

import segcal
from segcal.cases.kept import UNDER_WAY, Kept, Read

SPACE, CLASSES, CASES = (5, 7), 3, 6


@pytest.fixture
def folders(tmp_path):
    rng = np.random.default_rng(0)
    for name in ("one", "two", "labels"):
        (tmp_path / name).mkdir()
    for number in range(CASES):
        shared = 2 * rng.normal(size=(CLASSES, *SPACE))
        for name in ("one", "two"):
            scores = (shared + rng.normal(size=shared.shape)).astype(np.float16)
            np.save(tmp_path / name / f"c{number}.npy", scores)
        np.save(tmp_path / "labels" / f"c{number}.npy", rng.integers(0, CLASSES, SPACE).astype(np.uint8))
    return tmp_path


def opened(folders, pooling="best"):
    members = [folders / "one", folders / "two"]
    return segcal.open_cases(members, folders / "labels", kind="logits", pooling=pooling)


def same(one, other):
    for name in ("logits", "labels", "disagreement"):
        first, second = getattr(one, name), getattr(other, name)
        assert (first is None and second is None) or (first.dtype == second.dtype and torch.equal(first, second)), name
    assert (one.id, one.group, one.spacing, one.kind_warning) == (
        other.id,
        other.group,
        other.spacing,
        other.kind_warning,
    )


@pytest.mark.parametrize("room", [0, 1 << 20])
@pytest.mark.parametrize("disagreement", [False, True])
def test_a_case_that_was_kept_is_the_one_that_would_be_read(folders, room, disagreement):
    kept = opened(folders).keeping(room)
    kept.kept.rules, kept.kept.disagreement = ("mean_probs", "mean_logits"), disagreement
    for _ in range(2):
        for pooling in kept.poolings:
            mine, fresh = kept.pooled(pooling), opened(folders, pooling)
            same(mine.checked("c1"), fresh.checked("c1"))
            same(mine.with_disagreement().checked("c1"), fresh.with_disagreement().checked("c1"))


def test_what_was_kept_is_read_from_no_file(folders):
    kept = opened(folders).keeping(1 << 20)
    kept.kept.rules, kept.kept.compared = ("mean_probs", "mean_logits"), frozenset(["c2"])
    before = kept.pooled("mean_probs").checked("c2")
    for name in ("one", "two", "labels"):
        (folders / name / "c2.npy").unlink()
    same(before, kept.pooled("mean_probs").checked("c2"))
    assert kept.pooled("mean_logits").checked("c2").logits.shape == (CLASSES, *SPACE)
    assert [each.shape for each in kept.member_decisions("c2")] == [SPACE] * 2
    with pytest.raises(segcal.InputError, match="c2"):
        opened(folders, "mean_probs").checked("c2")


def test_members_decide_what_their_files_say(folders):
    kept = opened(folders, "mean_probs").keeping()
    kept.checked("c3")
    for folder, found in zip(("one", "two"), kept.member_decisions("c3"), strict=True):
        assert (found.numpy() == np.load(folders / folder / "c3.npy").argmax(0)).all()


def made(bytes_of_logits):
    return Read({"single": torch.zeros(bytes_of_logits, dtype=torch.uint8)}, None, None, {})


def test_no_more_is_kept_than_there_is_room_for():
    kept = Kept(1000)
    for number in range(20):
        kept.add(f"c{number}", made(300))
    held = [number for number in range(20) if kept.get(f"c{number}", "single", disagreement=False)]
    assert held == [0, 1, 2, *range(20 - UNDER_WAY, 20)]
    assert kept.room == 100
    kept.release("c19")
    assert kept.get("c19", "single", disagreement=False) is None
    kept.release("c0")
    assert kept.get("c0", "single", disagreement=False) is not None
    kept.keep_drawn("small", "drawn", 60)
    kept.keep_drawn("large", "drawn", 60)
    assert (kept.drawn("small"), kept.drawn("large")) == ("drawn", None)


def test_a_case_without_what_is_asked_for_is_not_given_out():
    kept = Kept(1000)
    kept.add("a", made(10))
    assert kept.get("a", "mean_probs", disagreement=False) is None
    assert kept.get("a", "single", disagreement=True) is not None  # one member, which agrees with itself
    kept.add("b", Read({"single": torch.zeros(1)}, None, None, {}, (torch.zeros(1), torch.zeros(1))))
    assert kept.get("b", "single", disagreement=True) is None


def test_no_case_travels_to_another_process():
    kept = Kept(1000)
    kept.rules = ("mean_probs",)
    kept.add("a", made(300))
    there = pickle.loads(pickle.dumps(kept))
    assert (there.room, there.rules, there.get("a", "single", disagreement=False)) == (0, ("mean_probs",), None)


@pytest.mark.parametrize("voxels", [4, 20_000])
def test_a_calibrator_is_the_same_with_and_without_room(folders, voxels):
    config = segcal.FitConfig(voxels=voxels)
    found = []
    for cases in (opened(folders), opened(folders).keeping(1 << 20)):
        fitted = segcal.choose(cases, names=["identity", "ts"], config=config)
        found.append(segcal.learn_trust(fitted, cases.pooled(fitted.pooling)))
    assert found[0].reference == found[1].reference
    assert found[0].certificate == found[1].certificate


def test_a_file_that_is_replaced_after_a_look_is_read_anew(folders):
    cases = opened(folders, "mean_logits")  # which looks at the first case
    np.save(folders / "one" / "c0.npy", np.zeros((CLASSES, *SPACE), np.float32))
    np.save(folders / "two" / "c0.npy", np.ones((CLASSES, *SPACE), np.float32))
    assert torch.equal(cases.checked("c0").logits, torch.full((CLASSES, *SPACE), 0.5))
