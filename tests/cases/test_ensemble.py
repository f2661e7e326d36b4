import numpy as np
import pytest

from segcal.cases import ArrayCases
from segcal.cases.ensemble import FEW_CASES, look_at_members


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
