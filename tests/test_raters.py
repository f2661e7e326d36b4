"""Votes of several raters against plain loops, in every form in which labels are given."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import segcal
from segcal import ArrayCases, InputError
from segcal.raters import Raters

SPACE = (5, 7)


def maps_of(seed, raters=4, classes=3):
    return np.random.default_rng(seed).integers(-1, classes, size=(raters, *SPACE))


def counted(maps, weights, classes):
    """Return votes ``(classes, *space)``, one voxel after the other."""
    found = np.zeros((classes, *maps.shape[1:]), int)
    for own, weight in zip(maps, weights, strict=True):
        for place, label in np.ndenumerate(own):
            if label >= 0:
                found[(label, *place)] += weight
    return found


def dense(votes):
    return np.moveaxis(votes.count[votes.code.numpy()], -1, 0)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.lists(st.integers(1, 3), min_size=1, max_size=5))
def test_votes_of_maps_are_those_of_a_loop(seed, weights):
    maps = maps_of(seed, len(weights))
    votes = Raters("axis", tuple(weights)).of_maps(enumerate(maps), 3)
    own = counted(maps, weights, 3)
    assert (dense(votes) == own).all()
    assert (votes.marks[votes.code.numpy()] == np.moveaxis(maps, 0, -1)).all()
    assert (votes.labels().numpy() == np.where(own.sum(0) > 0, own.argmax(0), -1)).all()


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6))
def test_entries_are_the_votes_of_every_voxel_in_order(seed):
    maps = maps_of(seed)
    votes = Raters("axis", (1, 2, 1, 3)).of_maps(enumerate(maps), 3)
    entries = votes.entries()
    found = np.zeros((np.prod(SPACE), 3), int)
    np.add.at(found, (entries.index.numpy(), entries.label.numpy()), entries.votes.numpy())
    assert (found.T.reshape(3, *SPACE) == counted(maps, (1, 2, 1, 3), 3)).all()
    assert (entries.index.diff() >= 0).all()
    assert len({*zip(entries.index.tolist(), entries.label.tolist(), strict=True)}) == len(entries.index)


def test_shares_and_bits_are_the_maps_that_they_were_made_of():
    maps = maps_of(3, 5, 2).clip(0)
    own = counted(maps, (1,) * 5, 2)
    bits = (maps << np.arange(5)[:, None, None]).sum(0)
    for raters, given_as in (
        (Raters("bits", (1,) * 5), bits),
        (Raters("shares", (5,)), own / 5),
        (Raters("shares", (5,)), (own / 5)[1].astype("float32")),
        (Raters("axis", (1,) * 5), maps),
    ):
        votes = raters.votes(torch.from_numpy(given_as), "labels", SPACE, 2, None)
        assert (dense(votes) == own).all()


def test_bits_mark_the_second_of_more_classes():
    cases = ArrayCases([np.eye(3, 8)], [np.arange(8)], raters="bits", num_raters=3)
    case = cases.read("0")
    assert case.votes.count[case.votes.code.numpy()].tolist() == [[3 - n, n, 0] for n in (0, 1, 1, 2, 1, 2, 2, 3)]
    assert segcal.evaluate(cases, metrics=["dice"]).before["dice"].value is not None


def test_rounded_shares_have_all_votes_and_are_nearest():
    shares = np.random.default_rng(0).dirichlet([0.5] * 4, SPACE)
    votes = Raters("shares", (7,)).votes(torch.from_numpy(np.moveaxis(shares, -1, 0)), "labels", SPACE, 4, None)
    found = np.moveaxis(dense(votes), 0, -1)
    assert (found.sum(-1) == 7).all()
    assert np.abs(found - 7 * shares).max() < 1


def test_a_voxel_without_votes_is_ignored_and_a_mask_takes_votes_away():
    maps = maps_of(1)
    maps[:, 0, 0] = -1
    votes = Raters("axis", (1,) * 4).of_maps(enumerate(maps), 3)
    assert votes.labels()[0, 0] == -1
    inside = torch.zeros(SPACE, dtype=torch.bool)
    inside[1:3] = True
    kept = votes.inside(inside)
    assert (dense(kept) == counted(maps, (1,) * 4, 3) * inside.numpy()).all()


def test_one_vote_is_drawn_as_often_as_raters_gave_it():
    votes = Raters("axis", (1, 3)).of_maps(enumerate(np.stack([np.zeros(9000, int), np.ones(9000, int)])), 2)
    drawn = votes.one_each(np.random.default_rng(0))
    assert 0.72 < drawn.double().mean() < 0.78
    with_one = Raters("axis", (1,)).of_maps([(0, maps_of(5)[0])], 3)
    assert torch.equal(with_one.one_each(np.random.default_rng(0)), with_one.labels())


@pytest.mark.parametrize(
    ("declared", "told"),
    [
        ({"raters": "axis", "num_raters": 3}, "one label map|has space"),
        ({"raters": "bits", "num_raters": 2}, "has space"),
        ({"raters": "shares", "num_raters": 0}, "to how many votes shares are"),
        ({"raters": "shares", "num_raters": 5}, "share"),
        ({"raters": "maps"}, "several folders are 'maps'"),
        ({"raters": "votes", "num_raters": 5}, "several folders are 'maps'"),
        ({"num_raters": 5}, "Declare how labels of raters are stored"),
        ({"raters": "axis", "rater_weights": [1, 0, 2, 1]}, "one whole number from 1"),
        ({"raters": "bits"}, "number of raters must be declared"),
    ],
)
def test_wrong_declarations_are_refused(declared, told):
    with pytest.raises(InputError, match=told):
        ArrayCases([np.zeros((3, *SPACE), "f4")], [maps_of(0).clip(0)], **declared).read("0")


def test_bits_that_no_rater_has_and_shares_without_sum_are_refused():
    logits = np.zeros((2, *SPACE), "f4")
    for labels, declared, told in (
        (np.full(SPACE, 8), {"raters": "bits", "num_raters": 3}, "contains 8, but there are 8"),
        (np.full(SPACE, -2), {"raters": "bits", "num_raters": 3}, "contains -2"),
        (np.full(SPACE, 9), {"raters": "bits", "num_raters": 3, "ignore": 255}, "contains 9"),
        (np.full((2, *SPACE), 0.6), {"raters": "shares", "num_raters": 3}, "off a sum of 1 by 0.2"),
        (np.full(SPACE, np.nan), {"raters": "shares", "num_raters": 3}, "off a sum of 1"),
        (np.full((3, *SPACE), 9), {"raters": "axis"}, "contains 9"),
    ):
        with pytest.raises(InputError, match=told):
            ArrayCases([logits], [labels], **declared).read("0")


def test_votes_of_a_foreign_collection_are_looked_at():
    class Own(ArrayCases):
        def read(self, case_id):
            case = super().read(case_id)
            return replace(case, votes=replace(case.votes, code=case.votes.code[1:]))

    cases = Own([np.zeros((3, *SPACE), "f4")], [maps_of(0)], raters="axis", ignore=-1)
    with pytest.raises(InputError, match="votes has shape"):
        cases.checked("0")


def test_memory_grows_neither_with_raters_nor_with_classes():
    rng = np.random.default_rng(0)
    base = np.zeros((64, 64), int)
    base[16:48, 16:48] = 1
    maps = [np.roll(base, rng.integers(-1, 2, 2), (0, 1)) for _ in range(10)]
    votes = Raters("axis", (1,) * 10).of_maps(enumerate(maps), 2)
    assert votes.code.dtype == torch.uint8
    assert votes.nbytes < 3 * base.size
