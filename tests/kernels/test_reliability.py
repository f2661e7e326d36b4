"""The pass over voxels: the loops against plain Python, the reference and a CUDA device against the loops."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from segcal.errors import InputError
from segcal.kernels import reliability, reliability_numba
from segcal.kernels.apply import has_triton
from segcal.kernels.raw_tables import Layout, add_tables
from segcal.kernels.reliability import count_voxels
from segcal.kernels.reliability_numba import find_bins

BINS, CLASS_BINS = (10, 7), 6
no_kernels = pytest.mark.skipif(not (torch.cuda.is_available() and has_triton()), reason="no CUDA device")


def make_case(seed, num_classes, voxels, scale=3.0, dtype=torch.float64):
    rng = np.random.default_rng(seed)
    scores = torch.from_numpy(rng.normal(scale=scale, size=(num_classes, voxels))).to(dtype)
    labels = torch.from_numpy(rng.integers(-1, num_classes, size=voxels))
    bands = rng.integers(0, 3, size=voxels).astype(np.uint8)
    reference = rng.integers(0, num_classes, size=voxels).astype(np.int16)
    return scores, labels, bands, reference


def assert_same(found, expected, rtol=0.0, atol=0.0, only=None):
    """Counts are equal, and sums within a relative and an absolute error."""
    for name in only or found._fields:
        mine, its = getattr(found, name), getattr(expected, name)
        exact = mine.dtype == np.int64
        np.testing.assert_allclose(mine, its, rtol=0 if exact else rtol, atol=0 if exact else atol, err_msg=name)


def fill(table, like):
    array = np.zeros_like(like)
    for cell, amount in table.items():
        array[cell] = amount
    return array


@pytest.mark.parametrize(("num_classes", "voxels"), [(2, 1), (3, 257), (20, 300)])
def test_every_table_is_what_counting_one_by_one_gives(plain_count, num_classes, voxels):
    scores, labels, bands, reference = make_case(num_classes, num_classes, voxels)
    prediction = np.empty(voxels, np.int16)
    found = count_voxels(scores, labels, Layout(num_classes, BINS, CLASS_BINS, 3), bands, reference, prediction)
    plain = plain_count(scores.tolist(), labels.tolist(), BINS, CLASS_BINS, bands, reference.tolist())
    names = ("cells", "class_count", "class_hits", "confusion", "flips", "confidence", "class_prob")
    expected = {name: fill(plain[name], getattr(found, name)) for name in names}
    assert_same(found, found._replace(**expected), 1e-12, 1e-14, names)
    np.testing.assert_allclose(found.sums, plain["sums"], rtol=1e-12)
    assert prediction.tolist() == plain["prediction"]
    assert found.ignored[0] == plain["ignored"]
    energies = np.array(plain["energies"])
    if energies.size:
        moments = [energies.mean(), energies.var() * energies.size]
        np.testing.assert_allclose(found.energy, moments, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(found.offset[0], np.abs(energies).max(), rtol=1e-13)


@pytest.mark.parametrize(("num_classes", "chunk"), [(2, 100), (7, 1 << 18)])
def test_the_reference_agrees_with_the_loops(monkeypatch, num_classes, chunk):
    monkeypatch.setattr(reliability, "CHUNK", chunk)
    scores, labels, bands, reference = make_case(num_classes, num_classes, 279, scale=4.0)
    layout, predictions = Layout(num_classes, (50, 15), 15, 3), np.empty((2, 279), np.int16)
    first = reliability_numba.count_voxels(scores, labels, layout, bands, reference, predictions[0])
    space = scores.reshape(num_classes, 9, 31), labels.reshape(9, 31)
    assert_same(reliability.reference_count(*space, layout, bands, reference, predictions[1]), first, 1e-12, 1e-13)
    np.testing.assert_array_equal(*predictions)


def test_half_types_are_read_as_they_are_and_computed_in_float32():
    for dtype in (torch.float16, torch.bfloat16):
        scores, labels, _, _ = make_case(1, 5, 1234, dtype=dtype)
        scores[0, :5] = torch.tensor([0.0, -0.0, 6e-5, 1e-7, -30.0]).to(dtype)  # zeros and numbers that are not normal
        layout = Layout(5, BINS, CLASS_BINS)
        assert_same(count_voxels(scores, labels, layout), count_voxels(scores.float(), labels, layout))


def test_float32_counts_are_those_of_float64_away_from_bin_edges():
    scores, labels, _, _ = make_case(2, 6, 4000, dtype=torch.float32)
    q = torch.softmax(scores.double(), 0)
    for bins in (*BINS, CLASS_BINS):
        labels[((q * bins - (q * bins).round()).abs() < 1e-4).any(0)] = -1
    assert int((labels >= 0).sum()) > 2000
    layout = Layout(6, BINS, CLASS_BINS)
    single, double = count_voxels(scores, labels, layout), count_voxels(scores.double(), labels, layout)
    assert_same(single, double, 3e-7, only=("cells", "class_count", "class_hits", "confusion", "sums"))


def test_the_result_does_not_depend_on_the_number_of_threads(by_threads):
    scores, labels, bands, reference = make_case(3, 4, 300_000, dtype=torch.float32)
    layout = Layout(4, (50, 15), 15, 3)
    first, *others = by_threads(lambda: count_voxels(scores, labels, layout, bands, reference))
    for other in others:
        assert [table.tobytes() for table in other] == [table.tobytes() for table in first]


@settings(max_examples=25)
@given(seed=st.integers(0, 10**6), num_classes=st.integers(2, 6), voxels=st.integers(2, 700), data=st.data())
def test_cutting_a_case_anywhere_gives_the_same_counts_and_sums(seed, num_classes, voxels, data):
    scores, labels, bands, reference = make_case(seed, num_classes, voxels, dtype=torch.float32)
    layout = Layout(num_classes, BINS, CLASS_BINS, 3)
    cut = data.draw(st.integers(1, voxels - 1))
    parts = [
        count_voxels(scores[:, p].contiguous(), labels[p], layout, bands[p], reference[p])
        for p in (slice(0, cut), slice(cut, voxels))
    ]
    assert_same(count_voxels(scores, labels, layout, bands, reference), add_tables(parts), 1e-12, 1e-12)


def test_an_array_that_is_not_contiguous_is_counted_in_pieces_and_the_same(monkeypatch):
    rng = np.random.default_rng(5)
    last = torch.from_numpy(rng.normal(size=(7, 11, 13, 4)).astype(np.float32))  # as some libraries have it
    scores, labels = last.movedim(-1, 0), torch.from_numpy(rng.integers(-1, 4, size=(7, 11, 13)))
    bands, layout = rng.integers(0, 2, size=labels.numel()).astype(np.uint8), Layout(4, BINS, CLASS_BINS, 2)
    whole = count_voxels(scores.contiguous(), labels, layout, bands)
    monkeypatch.setattr(reliability_numba, "PIECE_VOXELS", 300)
    assert_same(count_voxels(scores, labels, layout, bands), whole, 1e-12, 1e-12)


def test_values_on_an_edge_are_in_the_bin_below_it():
    for bins in (1, 2, 10, 15, 50, 997):
        edges = np.arange(bins + 1) / bins
        values = np.unique(np.concatenate([edges, np.nextafter(edges, 0), np.nextafter(edges, 1)]))
        values = values[(values > 0) & (values <= 1)]
        slot = np.zeros(values.size, np.int64)
        find_bins(values, bins, slot, values.size)
        np.testing.assert_array_equal(slot, np.clip(np.searchsorted(edges, values, side="left") - 1, 0, bins - 1))


def test_a_uniform_voxel_has_confidence_one_over_the_number_of_classes_whatever_the_type():
    for dtype in (torch.float16, torch.float32, torch.float64):
        found = count_voxels(torch.zeros(5, 3, dtype=dtype), torch.tensor([0, 1, 2]), Layout(5, (50,), 15))
        # 0.2 is the upper edge of bin 9 of 50.
        assert found.cells.sum((0, 1, 2)).nonzero()[0].tolist() == [9]


def test_full_confidence_is_in_the_last_bin_and_its_uncertainty_is_not_lost():
    scores = torch.tensor([[60.0, 25.0], [0.0, 0.0]])
    found = count_voxels(scores, torch.tensor([0, 0]), Layout(2, (50,), 15))
    assert found.cells.sum((0, 1, 2))[-1] == 2
    assert found.sums[0] == pytest.approx(math.exp(-25.0), rel=1e-6)  # float32 probabilities would say zero
    assert np.count_nonzero(found.uncertainty) == 2


def test_of_equal_scores_the_lowest_class_wins_unless_the_reference_is_one_of_them():
    scores = torch.tensor([[1.0, 1.0, 1.0, 0.0], [3.0, 3.0, 3.0, 0.0], [3.0, 3.0, 3.0, 5.0]])
    labels, prediction, layout = torch.tensor([1, 1, 1, 1]), np.empty(4, np.int16), Layout(3, (10,), 0)
    count_voxels(scores, labels, layout, prediction=prediction)
    assert prediction.tolist() == [1, 1, 1, 2]
    reference = np.array([2, 0, 1, 1], np.int16)
    found = count_voxels(scores, labels, layout, reference=reference, prediction=prediction)
    assert prediction.tolist() == [2, 1, 1, 2]
    assert np.argwhere(found.flips).tolist() == [[0, 1, 1], [1, 2, 0]]


@pytest.mark.parametrize("count", [reliability_numba.count_voxels, reliability.reference_count])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_scores_that_are_not_finite_are_refused(count, dtype, value):
    scores = torch.zeros(3, 500, dtype=dtype)
    scores[1, 400] = value
    with pytest.raises(InputError, match="scores has 1 values that are NaN or infinite"):
        count(scores, torch.zeros(500, dtype=torch.int64), Layout(3, (10,), 6))


def test_more_voxels_in_one_bin_than_float32_can_count_are_counted():
    voxels = 2**24 + 1
    scores = torch.tensor([[8.0], [0.0]], dtype=torch.float16).expand(2, voxels).contiguous()
    found = count_voxels(scores, torch.zeros(1, dtype=torch.int64).expand(voxels), Layout(2, (50,), 0))
    assert found.cells.sum((0, 1, 2))[-1] == voxels
    assert found.confidence.sum() / voxels == pytest.approx(1 / (1 + math.exp(-8.0)), rel=1e-7)


def on_device(scores, labels, *rest):
    from segcal.kernels.reliability_triton import count_voxels as count_there

    return count_there(scores.cuda(), labels.cuda(), *rest)


@pytest.mark.gpu
@no_kernels
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    ("classes", "voxels"),
    [(2, 1), (3, 100_003), (5, 257), (20, 20_011), (24, 4001), (25, 4001), (33, 7001), (150, 3001)],
)
def test_counts_of_a_device_are_those_of_the_cpu(classes, voxels, dtype):
    scores, labels, bands, reference = make_case(classes, classes, voxels, dtype=dtype)
    for maps, layout in (
        ((bands, reference), Layout(classes, (50, 7), 15, 3)),
        ((None, None), Layout(classes, (10,), 0)),
        ((None, reference), Layout(classes, (3,), 1)),
    ):
        one, two = np.empty((2, voxels), np.int16)
        found, expected = (
            on_device(scores, labels, layout, *maps, one),
            count_voxels(scores, labels, layout, *maps, two),
        )
        np.testing.assert_array_equal(one, two)
        loose = ("class_prob", "sums")  # in part float32, in another order
        assert_same(found, expected, 1e-6, 1e-11, loose)
        assert_same(found, expected, 1e-11, 1e-11, [name for name in found._fields if name not in loose])


@pytest.mark.gpu
@no_kernels
def test_a_device_reads_labels_that_do_not_lie_in_a_row_in_their_order():
    scores, labels, *_ = make_case(4, 4, 5003, dtype=torch.float32)
    apart = torch.stack([labels, -torch.ones_like(labels)], dim=1).cuda()[:, 0]
    found, expected = (on_device(scores, apart, Layout(4, (10,), 5)), count_voxels(scores, labels, Layout(4, (10,), 5)))
    np.testing.assert_array_equal(found.confusion, expected.confusion)


@pytest.mark.gpu
@no_kernels
def test_sums_of_a_device_are_the_same_every_time():
    scores, labels, bands, reference = make_case(7, 7, 1_000_003, dtype=torch.float32)
    first, second = (on_device(scores, labels, Layout(7, (50, 15), 15, 3), bands, reference) for _ in range(2))
    assert [table.tobytes() for table in first] == [table.tobytes() for table in second]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, no_kernels])])
@pytest.mark.parametrize("classes", [5, 33])
def test_images_at_once_have_the_tables_of_each_to_the_last_bit(device, classes, monkeypatch):
    scores, labels, *_ = make_case(0, classes, 3 * 4001, dtype=torch.float32)
    images, truth = scores.reshape(classes, 3, 4001).movedim(1, 0).to(device), labels.reshape(3, 4001).to(device)
    layout = Layout(classes, (50, 15), 15)
    each = [count_voxels(*image, layout) for image in zip(images, truth, strict=True)]
    found = [reliability.count_images(images, truth, layout)]
    if device == "cuda":  # in as many steps as there is room for
        monkeypatch.setattr("segcal.kernels.reliability_triton.MOST_ROOM", 1)
        found.append(reliability.count_images(images, truth, layout))
    for tables in found:
        assert [[table.tobytes() for table in one] for one in tables] == [[t.tobytes() for t in one] for one in each]
    images[2, 1, 4000] = float("inf")
    with pytest.raises(InputError, match="scores has 1 values that are NaN or infinite"):
        reliability.count_images(images, truth, layout)


@pytest.mark.gpu
@no_kernels
def test_a_large_offset_costs_no_digits_on_a_device():
    scores, labels, *_ = make_case(4, 4, 5003, dtype=torch.float32)
    scores = (scores * 8).round() / 8
    near, far = (on_device(scores + offset, labels, Layout(4, (10,), 5)) for offset in (0.0, 2.0**16))
    np.testing.assert_allclose(far.sums, near.sums, rtol=1e-12)
    np.testing.assert_allclose(far.energy[1], near.energy[1], rtol=1e-8)


@pytest.mark.gpu
@no_kernels
def test_a_device_refuses_scores_that_are_not_finite_and_takes_float64():
    scores, labels, *_ = make_case(3, 3, 1000)
    there, here = (count_voxels(each, labels, Layout(3, (50, 15), 15)) for each in (scores.cuda(), scores))
    assert_same(there, here, 1e-11, 1e-11)
    scores[1, 999] = float("nan")
    with pytest.raises(InputError, match="scores has 1 values that are NaN"):
        on_device(scores.float(), labels, Layout(3, (10,), 5))
