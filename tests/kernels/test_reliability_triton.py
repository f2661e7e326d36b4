"""Counting on a CUDA device gives the counts of the CPU, and the same sums every time."""

from dataclasses import fields

import numpy as np
import pytest
import torch

from segcal.errors import InputError
from segcal.kernels import reliability_numba
from segcal.kernels.raw_tables import Layout

pytest.importorskip("triton")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


def case_of(classes, voxels, dtype=torch.float32, scale=3.0):
    rng = np.random.default_rng(classes)
    scores = torch.from_numpy(rng.normal(scale=scale, size=(classes, voxels))).to(dtype)
    labels = torch.from_numpy(rng.integers(-1, classes, size=voxels))
    bands = rng.integers(0, 3, size=voxels).astype(np.uint8)
    return scores, labels, bands, rng.integers(0, classes, size=voxels).astype(np.int16)


def on_device(scores, labels, *rest):
    from segcal.kernels.reliability_triton import count_voxels

    return count_voxels(scores.cuda(), labels.cuda(), *rest)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    ("classes", "voxels"),
    [(2, 1), (3, 100_003), (5, 257), (20, 20_011), (24, 4001), (25, 4001), (33, 7001), (150, 3001)],
)
def test_counts_are_those_of_the_cpu(classes, voxels, dtype):
    scores, labels, bands, reference = case_of(classes, voxels, dtype)
    for maps, layout in (
        ((bands, reference), Layout(classes, (50, 7), 15, 3)),
        ((None, None), Layout(classes, (10,), 0)),
        ((None, reference), Layout(classes, (3,), 1)),
    ):
        one, two = np.empty(voxels, np.int16), np.empty(voxels, np.int16)
        found = on_device(scores, labels, layout, *maps, one)
        expected = reliability_numba.count_voxels(scores, labels, layout, *maps, two)
        np.testing.assert_array_equal(one, two)
        for field in fields(found):
            mine, theirs = getattr(found, field.name), getattr(expected, field.name)
            if mine.dtype == np.int64:
                np.testing.assert_array_equal(mine, theirs, err_msg=field.name)
            else:
                bound = 1e-6 if field.name in ("class_prob", "sums") else 1e-11  # in part float32, in another order
                np.testing.assert_allclose(mine, theirs, rtol=bound, atol=1e-11, err_msg=field.name)


def test_labels_that_do_not_lie_in_a_row_are_read_in_their_order():
    scores, labels, *_ = case_of(4, 5003)
    apart = torch.stack([labels, -torch.ones_like(labels)], dim=1).cuda()[:, 0]
    found = on_device(scores, apart, Layout(4, (10,), 5))
    expected = reliability_numba.count_voxels(scores, labels, Layout(4, (10,), 5))
    np.testing.assert_array_equal(found.confusion, expected.confusion)


def test_sums_are_the_same_every_time():
    scores, labels, bands, reference = case_of(7, 1_000_003)
    layout = Layout(7, (50, 15), 15, 3)
    first, second = (on_device(scores, labels, layout, bands, reference) for _ in range(2))
    for field in fields(first):
        assert getattr(first, field.name).tobytes() == getattr(second, field.name).tobytes(), field.name


def test_a_large_offset_costs_no_digits():
    scores, labels, *_ = case_of(4, 5003)
    scores = (scores * 8).round() / 8
    layout = Layout(4, (10,), 5)
    near, far = on_device(scores, labels, layout), on_device(scores + 2.0**16, labels, layout)
    np.testing.assert_allclose(far.sums, near.sums, rtol=1e-12)
    np.testing.assert_allclose(far.energy[1], near.energy[1], rtol=1e-8)


def test_scores_that_are_not_finite_are_refused():
    scores, labels, *_ = case_of(3, 1000)
    scores[1, 999] = float("nan")
    with pytest.raises(InputError, match="scores has 1 values that are NaN"):
        on_device(scores, labels, Layout(3, (10,), 5))
