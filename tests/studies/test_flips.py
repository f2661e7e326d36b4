"""Where flips lie: every voxel against a plain loop, and shares worked by hand."""

import math

import numpy as np
import pytest
import torch

from segcal.benchmark.results import FlipBands
from segcal.calibrators import make_calibrator
from segcal.cases import ArrayCases
from segcal.report.images import decode_map, encode_indices
from segcal.studies.flips import FlipsData, count_places, example_flips, place_curve, share_bands


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
    flat = ArrayCases([logits[0][..., :6]], [np.ones((9, 6), int)])  # without a boundary
    found = count_places(flat.read("0"), swapping())
    assert found.voxels.tolist() == [0] * 32 + [54]
    assert place_curve(found).without_boundary == {"voxels": 54, "flips": int(found.flips[-1].sum())}


def test_shares_of_bands_are_of_all_voxels_and_of_all_flips(tables):
    flips = np.array([[3, 2, 1], [0, 1, 0], [0, 0, 0], [1, 0, 0], [0, 0, 0]])
    one = share_bands(FlipBands(np.array([30, 35, 15, 20, 0]), flips))
    assert [band.share_of_voxels for band in one.bands] == [0.3, 0.35, 0.15, 0.2]
    assert [band.share_of_flips for band in one.bands] == [0.75, 0.125, 0, 0.125]
    assert [band.flip_rate for band in one.bands] == [0.2, pytest.approx(1 / 35), 0, 0.05]
    assert (one.harmful, one.beneficial, one.neutral, one.flip_rate) == (4, 3, 1, 0.08)
    none = share_bands(FlipBands(np.array([10, 0, 0, 0, 0]), np.zeros((5, 3), int)))
    text = tables("flips", FlipsData({"toy": {"ms": one, "dc": none}}))
    assert "| ms | 8.00 | 75.0 (30.0) | 12.5 (35.0) | 0.0 (15.0) | 12.5 (20.0) |" in text
    assert "| dc | 0.00 | — | — | — | — |" in text


def test_the_example_shows_what_flipped():
    cases, logits, labels = make_cases()
    example = example_flips(cases.read("1"), swapping())
    before = logits[1].argmax(0)
    assert (decode_map(example.before) == before).all()
    changed = (decode_map(example.after) != before) & (labels[1] != 7)
    assert (decode_map(example.flipped) == changed).all()
    assert example.flips == changed.sum()


def test_only_pipelines_that_may_flip_are_studied_and_matrix_scaling_is_looked_at_closer(setting, studied):
    data = studied["flips"]
    assert list(data.tasks["toy"]) == ["ms(mean_logits)"]
    rate = setting.summary.numbers("plain", "ms(mean_logits)")["flip_rate"].value
    assert data.tasks["plain"]["ms(mean_logits)"].flip_rate == pytest.approx(rate)
    closer = data.closer["toy"]
    assert (closer.pipeline, closer.cases) == ("ms(mean_logits)", 2)
    counted = [sum(getattr(closer.curve, kind)) for kind in ("harmful", "beneficial", "neutral")]
    rows = setting.results.repeats("toy", "ms(mean_logits)")[0].rows[:2]
    assert sum(counted) == round(sum(row.metrics["flip_rate"] * row.voxels for row in rows))
    assert sum(counted) > 0


def test_flipped_voxels_are_marked_and_counted_by_distance(figures, texts, classes):
    flipped = np.zeros((12, 20), int)
    flipped[3, 4] = 1
    curve = {"distance": [0, 1], "voxels": [10, 0], "harmful": [2, 0], "beneficial": [1, 0], "neutral": [0, 0]}
    maps = dict.fromkeys(("labels", "before", "after"), classes) | {"flipped": encode_indices(flipped)}
    closer = {
        "pipeline": "ms(mean_logits)",
        "cases": 1,
        "curve": {**curve, "without_boundary": {}},
        "example": {"case": "a", "flips": 1234, "image": None, **maps},
    }
    figure = figures("flips", {"tasks": {}, "closer": {"heart": closer}})["flips_heart"].draw()
    layer = figure.axes[2].images[-1].get_array()
    assert np.argwhere(layer[..., 3] > 0).tolist() == [[3, 4]]
    assert [bar.get_height() for bar in figure.axes[3].patches] == [20, 0, 10, 0, 0, 0]
    assert "1,234 voxels that changed their class" in texts(figure)
