"""The fused pass against plain Python, at sizes where no two axes agree."""

import math
from dataclasses import fields

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from segcal.errors import InputError
from segcal.kernels import reliability_numba
from segcal.kernels.raw_tables import Layout
from segcal.kernels.reliability_numba import count_voxels

BINS, CLASS_BINS = (10, 7), 6


def make_case(seed, num_classes, voxels, scale=3.0, dtype=torch.float64):
    rng = np.random.default_rng(seed)
    scores = torch.from_numpy(rng.normal(scale=scale, size=(num_classes, voxels))).to(dtype)
    labels = torch.from_numpy(rng.integers(-1, num_classes, size=voxels))
    bands = rng.integers(0, 3, size=voxels).astype(np.uint8)
    reference = rng.integers(0, num_classes, size=voxels).astype(np.int16)
    return scores, labels, bands, reference


def fill(table, shape, dtype=float):
    array = np.zeros(shape, dtype)
    for cell, amount in table.items():
        array[cell] = amount
    return array


@pytest.mark.parametrize(("num_classes", "voxels"), [(2, 1), (2, 300), (3, 257), (5, 64), (20, 517)])
def test_every_table_is_what_counting_one_by_one_gives(plain_count, num_classes, voxels):
    scores, labels, bands, reference = make_case(num_classes, num_classes, voxels)
    layout = Layout(num_classes, BINS, CLASS_BINS, 3)
    prediction = np.empty(voxels, np.int16)
    found = count_voxels(scores, labels, layout, bands, reference, prediction)
    plain = plain_count(scores.tolist(), labels.tolist(), BINS, CLASS_BINS, bands, reference.tolist())

    for name in ("cells", "class_count", "class_hits", "confusion", "flips"):
        table = getattr(found, name)
        np.testing.assert_array_equal(table, fill(plain[name], table.shape, int), err_msg=name)
    for name in ("confidence", "class_prob"):
        table = getattr(found, name)
        np.testing.assert_allclose(table, fill(plain[name], table.shape), rtol=1e-12, atol=1e-14, err_msg=name)
    np.testing.assert_allclose(found.sums, plain["sums"], rtol=1e-12)
    assert prediction.tolist() == plain["prediction"]
    assert found.ignored[0] == plain["ignored"]
    energies = np.array(plain["energies"])
    if energies.size:
        np.testing.assert_allclose(
            found.energy, [energies.mean(), energies.var() * energies.size], rtol=1e-10, atol=1e-12
        )
        np.testing.assert_allclose(found.offset[0], np.abs(energies).max(), rtol=1e-13)


@pytest.mark.parametrize("num_classes", [2, 5, 19])
def test_half_types_are_read_as_they_are_and_computed_in_float32(num_classes):
    for dtype in (torch.float16, torch.bfloat16):
        scores, labels, _, _ = make_case(1, num_classes, 1234, dtype=dtype)
        scores[0, :5] = torch.tensor([0.0, -0.0, 6e-5, 1e-7, -30.0]).to(dtype)  # zeros and numbers that are not normal
        layout = Layout(num_classes, BINS, CLASS_BINS)
        half, single = count_voxels(scores, labels, layout), count_voxels(scores.float(), labels, layout)
        for f in fields(half):
            np.testing.assert_array_equal(getattr(half, f.name), getattr(single, f.name), err_msg=f"{dtype} {f.name}")


def test_float32_counts_are_those_of_float64_away_from_bin_edges():
    scores, labels, _, _ = make_case(2, 6, 4000, dtype=torch.float32)
    q = torch.softmax(scores.double(), 0)
    on_edge = torch.zeros(4000, dtype=torch.bool)
    for bins in (*BINS, CLASS_BINS):
        on_edge |= ((q * bins - (q * bins).round()).abs() < 1e-4).any(0)
    labels[on_edge] = -1
    assert int((labels >= 0).sum()) > 2000
    layout = Layout(6, BINS, CLASS_BINS)
    single, double = count_voxels(scores, labels, layout), count_voxels(scores.double(), labels, layout)
    for name in ("cells", "class_count", "class_hits", "confusion"):
        np.testing.assert_array_equal(getattr(single, name), getattr(double, name), err_msg=name)
    np.testing.assert_allclose(single.sums, double.sums, rtol=3e-7)


def test_the_result_does_not_depend_on_the_number_of_threads():
    scores, labels, bands, reference = make_case(3, 4, 300_000, dtype=torch.float32)
    layout = Layout(4, (50, 15), 15, 3)
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(count_voxels(scores, labels, layout, bands, reference))
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        for f in fields(other):
            assert getattr(other, f.name).tobytes() == getattr(results[0], f.name).tobytes(), f.name


@settings(max_examples=40)
@given(seed=st.integers(0, 10**6), num_classes=st.integers(2, 6), voxels=st.integers(2, 700), data=st.data())
def test_cutting_a_case_anywhere_gives_the_same_counts_and_sums(seed, num_classes, voxels, data):
    scores, labels, bands, reference = make_case(seed, num_classes, voxels, dtype=torch.float32)
    layout = Layout(num_classes, BINS, CLASS_BINS, 3)
    cut = data.draw(st.integers(1, voxels - 1))
    whole = count_voxels(scores, labels, layout, bands, reference)
    parts = [
        count_voxels(scores[:, p].contiguous(), labels[p], layout, bands[p], reference[p])
        for p in (slice(0, cut), slice(cut, voxels))
    ]
    both = parts[0] + parts[1]
    for f in fields(whole):
        mine, its = getattr(whole, f.name), getattr(both, f.name)
        if mine.dtype == np.int64:
            np.testing.assert_array_equal(mine, its, err_msg=f.name)
        else:
            np.testing.assert_allclose(mine, its, rtol=1e-12, atol=1e-12, err_msg=f.name)


def test_an_array_that_is_not_contiguous_is_counted_in_pieces_and_the_same(monkeypatch):
    rng = np.random.default_rng(5)
    last = torch.from_numpy(
        rng.normal(size=(7, 11, 13, 4)).astype(np.float32)
    )  # classes last, as some libraries have it
    scores, labels = last.movedim(-1, 0), torch.from_numpy(rng.integers(-1, 4, size=(7, 11, 13)))
    layout = Layout(4, BINS, CLASS_BINS)
    bands = rng.integers(0, 1, size=labels.numel()).astype(np.uint8)
    whole = count_voxels(scores.contiguous(), labels, layout, bands)
    monkeypatch.setattr(reliability_numba, "PIECE_VOXELS", 300)
    pieces = count_voxels(scores, labels, layout, bands)
    np.testing.assert_array_equal(whole.cells, pieces.cells)
    np.testing.assert_array_equal(whole.class_count, pieces.class_count)
    np.testing.assert_array_equal(whole.class_hits, pieces.class_hits)
    np.testing.assert_allclose(whole.sums, pieces.sums, rtol=1e-12)


@pytest.mark.parametrize("bins", [1, 2, 10, 15, 50, 997])
def test_values_on_an_edge_are_in_the_bin_below_it(bins):
    # Two classes with confidence k / bins: only confidences from 1/2 on can be the larger of two.
    edges = np.arange(bins + 1) / bins
    values = np.unique(np.concatenate([edges, np.nextafter(edges, 0), np.nextafter(edges, 1)]))
    values = values[(values > 0) & (values <= 1)]
    slot = np.zeros(values.size, np.int64)
    from segcal.kernels.reliability_tile import find_bins

    find_bins(values, bins, slot, values.size)
    np.testing.assert_array_equal(slot, np.clip(np.searchsorted(edges, values, side="left") - 1, 0, bins - 1))


def test_a_uniform_voxel_has_confidence_one_over_the_number_of_classes_whatever_the_type():
    for dtype in (torch.float16, torch.float32, torch.float64):
        found = count_voxels(torch.zeros(5, 3, dtype=dtype), torch.tensor([0, 1, 2]), Layout(5, (50,), 15))
        # 0.2 is the upper edge of bin 9 of 50.
        assert found.cells.sum((0, 1, 2)).nonzero()[0].tolist() == [9]


def test_full_confidence_is_in_the_last_bin_and_its_doubt_is_not_lost():
    scores = torch.tensor([[60.0, 25.0], [0.0, 0.0]])
    found = count_voxels(scores, torch.tensor([0, 0]), Layout(2, (50,), 15))
    assert found.cells.sum((0, 1, 2))[-1] == 2
    assert found.sums[0] == pytest.approx(math.exp(-25.0), rel=1e-6)  # float32 probabilities would say zero
    assert np.count_nonzero(found.doubt) == 2


def test_of_equal_scores_the_lowest_class_wins_unless_the_reference_is_one_of_them():
    scores = torch.tensor([[1.0, 1.0, 1.0, 0.0], [3.0, 3.0, 3.0, 0.0], [3.0, 3.0, 3.0, 5.0]])
    labels = torch.tensor([1, 1, 1, 1])
    prediction = np.empty(4, np.int16)
    layout = Layout(3, (10,), 0)
    count_voxels(scores, labels, layout, prediction=prediction)
    assert prediction.tolist() == [1, 1, 1, 2]
    reference = np.array([2, 0, 1, 1], np.int16)
    found = count_voxels(scores, labels, layout, reference=reference, prediction=prediction)
    assert prediction.tolist() == [2, 1, 1, 2]
    assert np.argwhere(found.flips).tolist() == [[0, 1, 1], [1, 2, 0]]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_scores_that_are_not_finite_are_refused(dtype, value):
    scores = torch.zeros(3, 500, dtype=dtype)
    scores[1, 400] = value
    with pytest.raises(InputError, match="scores has 1 values that are NaN or infinite"):
        count_voxels(scores, torch.zeros(500, dtype=torch.int64), Layout(3, (10,), 6))


def test_more_voxels_in_one_bin_than_float32_can_count_are_counted():
    scores = torch.tensor([[8.0], [0.0]], dtype=torch.float16).expand(2, 20_000_000).contiguous()
    found = count_voxels(scores, torch.zeros(1, dtype=torch.int64).expand(20_000_000), Layout(2, (50,), 0))
    assert found.cells.sum((0, 1, 2))[-1] == 20_000_000
    exact = 1 / (1 + math.exp(-8.0))
    assert found.confidence.sum() / 20_000_000 == pytest.approx(exact, rel=1e-7)
