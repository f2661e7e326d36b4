"""Where flips lie: every voxel against a plain loop, and shares worked by hand."""

import math

import numpy as np
import pytest
import torch

from segcal.benchmark.studies.examples import decode_map
from segcal.benchmark.studies.flips import FlipPlaces, count_places, flip_study, place_bands, run_flips
from segcal.calibrators import make_calibrator
from segcal.cases import ArrayCases


def swapping():
    """A matrix that raises class 1 above what is close to it."""
    calibrator = make_calibrator("ms", 3)
    with torch.no_grad():
        for parameter in calibrator.parameters():
            if parameter.shape == (3,):
                parameter.copy_(torch.tensor([0.0, 0.8, -0.3]))
    return calibrator


def make_cases():
    rng = np.random.default_rng(1)
    labels = [np.where(np.add.outer(np.arange(9), np.arange(40)) < 12 + 3 * k, 0, 1 + (k % 2)) for k in range(3)]
    labels[1][:, 30:] = 7
    logits = [
        (1.2 * np.eye(3)[np.minimum(truth, 2)].transpose(2, 0, 1) + rng.normal(size=(3, 9, 40))).astype("float32")
        for truth in labels
    ]
    return ArrayCases(logits, labels, ignore=7), logits, labels


def plain_boundary(truth):
    """Every voxel with a face neighbour of another label; 7 does not count."""
    found = []
    for i, j in np.ndindex(truth.shape):
        near = [(i + 1, j), (i - 1, j), (i, j + 1), (i, j - 1)]
        inside = [truth[a, b] for a, b in near if 0 <= a < truth.shape[0] and 0 <= b < truth.shape[1]]
        if truth[i, j] != 7 and any(other not in (7, truth[i, j]) for other in inside):
            found.append((i, j))
    return found


def test_voxels_and_flips_are_counted_by_distance_as_in_a_plain_loop():
    cases, logits, labels = make_cases()
    bias = np.array([0.0, 0.8, -0.3], "float32")
    for case_id, z, truth in zip(cases.ids, logits, labels, strict=True):
        boundary = plain_boundary(truth)
        voxels, flips = [0] * 33, [[0, 0, 0] for _ in range(33)]
        for i, j in zip(*np.nonzero(truth != 7), strict=True):
            step = min(int(min(math.dist((i, j), place) for place in boundary)), 31)
            before, after = int(z[:, i, j].argmax()), int((z[:, i, j] + bias).argmax())
            voxels[step] += 1
            if before != after:
                kind = 0 if before == truth[i, j] else 1 if after == truth[i, j] else 2
                flips[step][kind] += 1
        found = count_places(cases.read(case_id), swapping())
        assert found.voxels.tolist() == voxels
        assert found.flips.tolist() == flips
        assert sum(map(sum, flips)) > 20


def test_a_map_without_a_boundary_has_its_voxels_apart():
    cases = ArrayCases([np.random.default_rng(0).normal(size=(3, 5, 6)).astype("float32")], [np.ones((5, 6), int)])
    found = count_places(cases.read("0"), swapping())
    assert found.voxels.tolist() == [0] * 32 + [30]
    assert flip_study({"a": {"ms": found}}).data["tasks"]["a"]["ms"]["without_boundary"]["voxels"] == 30


def test_a_calibrator_that_keeps_the_mask_flips_nothing():
    cases, _, _ = make_cases()
    study = run_flips({"toy": (cases, {"ts": make_calibrator("ts", 3), "ms": swapping()})})
    assert study.data["tasks"]["toy"]["ts"]["flip_rate"] == 0
    assert study.data["tasks"]["toy"]["ts"]["bands"][0]["share_of_flips"] is None
    assert study.data["tasks"]["toy"]["ms"]["flip_rate"] > 0.05
    assert "| ts | 0.00 | — | — | — | — |" in study.tables["figure4_flips"].to_markdown()


def test_shares_of_bands_are_of_all_voxels_and_of_all_flips():
    voxels = np.zeros(33, int)
    voxels[[0, 2, 3, 6, 7, 20]] = [10, 20, 30, 5, 15, 20]
    flips = np.zeros((33, 3), int)
    flips[0] = [3, 2, 1]
    flips[3] = [0, 1, 0]
    flips[20] = [1, 0, 0]
    bands = place_bands(FlipPlaces(32, voxels, flips))
    assert [band["share_of_voxels"] for band in bands] == [0.3, 0.35, 0.15, 0.2]
    assert [band["share_of_flips"] for band in bands] == [0.75, 0.125, 0, 0.125]
    assert [band["flip_rate"] for band in bands] == [0.2, pytest.approx(1 / 35), 0, 0.05]


def test_the_example_is_the_case_with_most_flips():
    cases, logits, labels = make_cases()
    study = run_flips({"toy": (cases, {"ms": swapping()})})
    example = study.data["examples"]["toy"]["ms"]
    totals = [int(count_places(case, swapping()).flips.sum()) for case in cases]
    number = int(np.argmax(totals))
    assert (example["case"], example["flips"]) == (str(number), max(totals))
    before = logits[number].argmax(0)
    assert (decode_map(example["before"]) == before).all()
    changed = (decode_map(example["after"]) != before) & (labels[number] != 7)
    assert (decode_map(example["flipped"]) == changed).all()
