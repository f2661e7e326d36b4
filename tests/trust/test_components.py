"""Objects and what labels say of them, against flood fills, sets of voxels and all pairings."""

import sys
from itertools import permutations, product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from segcal.calibrators import make_calibrator
from segcal.calibrators.per_region import PerRegion
from segcal.cases.base import Case
from segcal.fitting.object_reference import OF_OBJECT, ObjectRule
from segcal.regions import Regions
from segcal.trust.components import components, find_objects, overlaps

COLUMN = {name: place for place, name in enumerate(OF_OBJECT)}


def flood(mask):
    """Return the components of a mask as sets of voxels, in the order of their first voxels."""
    left, found = {tuple(map(int, spot)) for spot in np.argwhere(mask)}, []
    steps = [step for step in product((-1, 0, 1), repeat=mask.ndim) if any(step)]
    while left:
        todo, one = [min(left)], set()
        while todo:
            spot = todo.pop()
            if spot in left:
                left.remove(spot)
                one.add(spot)
                todo += [tuple(a + b for a, b in zip(spot, step, strict=True)) for step in steps]
        found.append(one)
    return found


def neighbours(spot, space):
    """Return the voxels of the image that share a face with a voxel."""
    steps = [(axis, step) for axis in range(len(space)) for step in (-1, 1) if 0 <= spot[axis] + step < space[axis]]
    return [(*spot[:axis], spot[axis] + step, *spot[axis + 1 :]) for axis, step in steps]


def softmax(logits):
    shifted = np.exp(logits - logits.max(0))
    return shifted / shifted.sum(0)


def brute_overlaps(ours, theirs, measure, at):
    """Return real, Dice, size, and the largest number-weighted pairing over all one-to-one pairings."""
    value = np.zeros((len(ours), len(theirs)))
    rows = []
    for i, one in enumerate(ours):
        best = (0.0, 0)
        for j, other in enumerate(theirs):
            shared = len(one & other)
            measured = shared / (len(one | other) if measure == "iou" else len(one))
            value[i, j] = measured if measured >= at else 0
            best = max(best, (2 * shared / (len(one) + len(other)), len(other) if shared else 0))
        rows.append([float(any(value[i] > 0)), *best])
    wide = value if len(ours) <= len(theirs) else value.T
    sums = [sum(wide[i, j] for i, j in enumerate(chosen)) for chosen in permutations(range(wide.shape[1]), len(wide))]
    return rows, max(sums, default=0.0)


def made_case(space, seed, classes=3, **given):
    rng = np.random.default_rng(seed)
    logits = 2 * rng.normal(size=(classes, *space)).astype("float32")
    labels = (logits + 2 * rng.gumbel(size=logits.shape)).argmax(0)
    return Case("a", torch.from_numpy(logits), torch.from_numpy(labels), **given)


@pytest.mark.parametrize(
    ("space", "rule"),
    [((7, 5), ObjectRule("overlap", 0.5)), ((3, 5, 4), ObjectRule()), ((3, 5, 4), ObjectRule("iou", 0.3, smallest=2))],
)
def test_a_case_is_as_voxels_counted_one_by_one_say(space, rule):
    disagreement = torch.rand(space, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for seed in range(3):
        case = made_case(space, seed, disagreement=disagreement)
        probs, labels = softmax(case.logits.numpy().astype(float)), case.labels.numpy()
        found = find_objects(make_calibrator("identity", 3), case, (1, 2), rule)
        start = 0
        for place, structure in enumerate((1, 2)):
            ours = [each for each in flood(probs.argmax(0) == structure) if len(each) >= rule.smallest]
            theirs = flood(labels == structure)
            said, _ = brute_overlaps(ours, theirs, rule.measure, rule.at)
            table, places = (each[start : start + len(ours)] for each in (found.table, found.places))
            start += len(ours)
            inside = {spot for spot in np.ndindex(space) if probs[:, *spot].argmax() == structure}
            assert found.structures[place, 0] == len(theirs)
            for row, spots, own, told in zip(table, places, ours, said, strict=True):
                values = [probs[structure][spot] for spot in own]
                every = inside if rule.smallest == 1 else set().union(*ours)
                edge = [any(near not in every for near in neighbours(spot, space)) for spot in own]
                array = np.array(sorted(own))
                border = any(x in (0, size - 1) for spot in own for x, size in zip(spot, space, strict=True))
                apart = np.mean([float(disagreement[spot]) for spot in own])
                expected = [structure, len(own), np.mean(values), max(values), np.mean(edge), int(border), apart]
                assert row[:7] == pytest.approx(expected, rel=1e-5)
                assert row[7:9] == pytest.approx(told[:2])
                assert row[9] in [len(other) for other in theirs if own & other] or not row[9]
                assert spots == pytest.approx([*array.mean(0), *array.min(0), *(array.max(0) + 1)])
        assert start == len(found.table)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["iou", "overlap"]), st.sampled_from([0.1, 0.34, 0.6, 1.0]))
def test_pairs_are_the_best_of_all_pairings(seed, measure, at):
    rng = np.random.default_rng(seed)
    masks = rng.random((2, 6, 5)) < 0.35
    ours, theirs = (flood(mask) for mask in masks)
    if max(len(ours), len(theirs)) > 6:
        return
    numbers = np.zeros((2, 6, 5), np.int64)
    for side, parts in enumerate((ours, theirs)):
        for number, part in enumerate(parts, start=1):
            for spot in part:
                numbers[side][spot] = number
    found, missed = overlaps(*numbers, ObjectRule(measure, at))
    rows, best = brute_overlaps(ours, theirs, measure, at)
    assert found[:, :2] == pytest.approx(np.array([row[:2] for row in rows]).reshape(-1, 2))
    matched = int(found[:, 3].sum())
    assert missed == len(theirs) - matched
    assert (found[:, 3] <= found[:, 0]).all()
    assert (best > 0) == (matched > 0)
    assert matched >= best - 1e-9  # no overlap is above one


def test_voxels_outside_of_the_field_of_view_are_no_objects():
    case = made_case((6, 7), 3, mask=torch.arange(42).reshape(6, 7) % 7 < 4)
    parts = components(make_calibrator("identity", 3), case, (0, 1, 2))
    assert sum(int((part.numbers > 0).sum()) for part in parts) == 6 * 4


def test_an_object_without_labels_is_not_known_and_others_count_labelled_voxels():
    logits = np.full((2, 3, 8), -9.0, "float32")
    logits[1, 1, :3], logits[1, 1, 5:] = 9, 9
    labels = np.zeros((3, 8), np.int64)
    labels[:, :2], labels[1, 2] = -1, 1
    case = Case("a", torch.from_numpy(logits), torch.from_numpy(labels))
    found = find_objects(make_calibrator("identity", 2), case, (1,), ObjectRule())
    assert found.table[:, COLUMN["size"]].tolist() == [3, 3]
    assert found.table[0, -4:].tolist() == [1, 1, 1, 1]
    labels[:, 5:] = -1
    case = Case("a", torch.from_numpy(logits), torch.from_numpy(labels))
    again = find_objects(make_calibrator("identity", 2), case, (1,), ObjectRule()).table
    assert np.isnan(again[1, -4:]).all()
    assert again[0, -4:].tolist() == [1, 1, 1, 1]


def test_regions_overlap_and_have_objects_of_their_own():
    regions = Regions.declared({"whole": [1, 2], "core": [2]})
    calibrator = PerRegion(regions, [make_calibrator("identity", 2) for _ in range(2)])
    rng = np.random.default_rng(4)
    logits = rng.normal(size=(2, 5, 8)).astype("float32")
    labels = torch.from_numpy(rng.integers(0, 3, (5, 8)))
    case = Case("a", torch.from_numpy(logits), labels, disagreement=torch.ones(2, 5, 8))
    found = find_objects(calibrator, case, (0, 1), ObjectRule())
    for place, own in enumerate(([1, 2], [2])):
        ours, theirs = flood(logits[place] > 0), flood(np.isin(labels.numpy(), own))
        rows = found.table[found.table[:, 0] == place]
        assert rows[:, 1].tolist() == [len(each) for each in ours]
        said, _ = brute_overlaps(ours, theirs, "iou", 0.1)
        assert rows[:, 7:9] == pytest.approx(np.array(said)[:, :2])
        assert found.structures[place, 0] == len(theirs)


def test_nothing_is_nothing_and_slabs_change_nothing(monkeypatch):
    case = Case("a", torch.tensor([[[5.0, 5.0]], [[0.0, 0.0]]]), torch.tensor([[1, 0]]))
    found = find_objects(make_calibrator("identity", 2), case, (1,), ObjectRule())
    assert (found.table.shape, found.places.shape) == ((0, 11), (0, 6))
    assert found.structures[0, :2].tolist() == [1, 1]
    case = made_case((9, 6, 4), 8)
    whole = find_objects(make_calibrator("identity", 3), case, (1, 2), ObjectRule())
    monkeypatch.setattr(sys.modules[find_objects.__module__], "STEP_VALUES", 100)
    parts = find_objects(make_calibrator("identity", 3), case, (1, 2), ObjectRule())
    assert parts.table == pytest.approx(whole.table, nan_ok=True)
    assert parts.structures == pytest.approx(whole.structures)
