import collections
import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage

from segcal.errors import InputError
from segcal.kernels.distance_numba import squared_distances
from segcal.statistics import boundary
from segcal.statistics.boundary import BandCache, find_bands, find_boundary


def draw_6x6():
    labels = np.zeros((6, 6), np.int64)
    labels[1:4, 1:4] = 1
    labels[3:5, 3:5] = 2
    return labels


def test_the_boundary_of_the_hand_drawn_map():
    expected = ["011100", "111110", "110110", "111111", "011111", "000110"]
    found = find_boundary(draw_6x6()).astype(int)
    assert ["".join(map(str, row)) for row in found] == expected


def boundary_one_by_one(labels):
    found = np.zeros(labels.shape, bool)
    for place in np.ndindex(labels.shape):
        for axis in range(labels.ndim):
            for step in (-1, 1):
                other = list(place)
                other[axis] += step
                if 0 <= other[axis] < labels.shape[axis]:
                    y, n = labels[place], labels[tuple(other)]
                    found[place] |= y != n and y >= 0 and n >= 0
    return found


@pytest.mark.parametrize("shape", [(17,), (6, 9), (4, 5, 7)])
def test_boundary_and_bands_against_loops_and_scipy(shape):
    rng = np.random.default_rng(len(shape))
    labels = (ndimage.gaussian_filter(rng.normal(size=shape), 1) > 0.1).astype(np.int64)
    labels[rng.random(shape) < 0.1] = -1
    boundary = boundary_one_by_one(labels)
    np.testing.assert_array_equal(find_boundary(labels), boundary)
    distance = ndimage.distance_transform_edt(~boundary)
    bands = find_bands(labels, edges=(0, 1, 2.5))
    code = np.digitize(distance, [1, 2.5])
    np.testing.assert_array_equal(bands.code, code.ravel())
    valid = labels >= 0
    for k in range(3):
        assert bands.count[k] == (valid & (code == k)).sum()
        assert bands.distance[k] == pytest.approx(distance[valid & (code == k)].sum())


def test_maps_without_a_boundary_have_no_bands():
    bands = find_bands(np.zeros((4, 5), np.int64))
    assert (bands.code == 4).all()
    assert bands.count.sum() == 0
    assert find_bands(np.array([0, 0, -1, 1, 1])).count.sum() == 0  # a pair with an ignored voxel is none
    assert find_boundary(np.array([[0, 255, 1]], np.uint8)).all()
    assert np.isposinf(squared_distances(np.zeros((2, 3), bool))).all()


@pytest.mark.parametrize("edges", [(1, 3), (0, 3, 3), (), (0, -1)])
def test_band_edges_that_do_not_rise_from_zero_are_refused(edges):
    with pytest.raises(InputError, match=r"but bands begin at 0 and rise. Pass for example \(0, 3, 7, 15\)"):
        find_bands(np.zeros((2, 2), int), edges)


def test_the_cache_computes_each_case_once_and_stays_within_its_size():
    cache = BandCache(max_bytes=80)
    labels = np.array([[0] * 20 + [1] * 20])
    first = cache.bands("a", labels)
    assert cache.bands("a", labels) is first
    cache.bands("b", labels)
    assert cache.bands("a", labels) is first
    cache.bands("c", labels)  # b, used longest ago, has to go
    assert cache.bands("a", labels) is first
    assert list(cache._kept) == ["c", "a"]


def test_memory_follows_the_voxels_and_not_the_square_of_a_side():
    """A strip of 200,000 voxels has squared distances up to 4e10: one counter for each would be 320 gigabytes."""
    length = 200_000
    labels = np.zeros((1, length), np.int8)
    labels[0, :2] = 1
    found = find_bands(labels)
    assert found.count.tolist() == [5, 4, 8, length - 17]
    assert found.distance[:3].tolist() == [1 + 0 + 0 + 1 + 2, 3 + 4 + 5 + 6, sum(range(7, 15))]
    exact = sum(range(15, length - 2))
    assert found.distance[3] == pytest.approx(exact, rel=1e-6)


@pytest.mark.parametrize("ignored", [False, True])
def test_both_ways_of_counting_distances_agree_to_the_last_bit(ignored, monkeypatch):
    """Against one counter for each squared distance of the whole map, as a plain loop sums them."""
    rng = np.random.default_rng(3)
    labels = np.zeros((61, 83), np.int64)
    labels[:2, :3] = 1
    labels[rng.random(labels.shape) < 0.1] = -1 if ignored else 0
    square = np.rint(squared_distances(find_boundary(labels)))[labels >= 0].astype(int)
    count, total = [0] * 4, [0.0] * 4
    for size, often in sorted(collections.Counter(square.tolist()).items()):
        band = sum(size >= edge * edge for edge in (3, 7, 15))
        count[band] += often
        total[band] += often * math.sqrt(size)
    for counters in (1 << 20, 5000, 700, 1):
        monkeypatch.setattr(boundary, "COUNTERS", counters)
        found = find_bands(labels)
        assert found.count.tolist() == count
        assert found.distance.tolist() == total


def test_counting_distances_takes_the_same_memory_whatever_the_size(monkeypatch):
    """One counter for each squared distance of a side of 2000 would be 64 megabytes, and five arrays of it."""
    monkeypatch.setattr(boundary, "COUNTERS", 1 << 14)
    peaks = []
    for side in (500, 2000):
        square = (np.arange(side, dtype=np.float32)[:, None] ** 2 + np.arange(side, dtype=np.float32) ** 2).reshape(-1)
        tracemalloc.start()
        voxels = sum(int(often.sum()) for _, often in boundary._count_distances(square))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert voxels == side * side
    assert max(peaks) < 4_000_000


def squares_one_by_one(target, spacing):
    places = np.argwhere(target)
    each = [np.square((places - place) * np.array(spacing)).sum(1).min() for place in np.ndindex(target.shape)]
    return np.reshape(each, target.shape)


@st.composite
def targets(draw):
    shape = tuple(draw(st.permutations([2, 3, 5, 7]))[: draw(st.integers(1, 4))])
    target = np.random.default_rng(draw(st.integers(0, 1000))).random(shape) < draw(st.floats(0.02, 0.6))
    target.flat[draw(st.integers(0, target.size - 1))] = True
    return target


sizes = st.lists(st.floats(0.1, 10), min_size=4, max_size=4)


@settings(deadline=None, max_examples=30)
@given(target=targets(), spacing=sizes)
def test_squared_distances_are_those_of_loops(target, spacing):
    square = squared_distances(target)
    assert square.dtype == np.float32
    np.testing.assert_array_equal(square, squares_one_by_one(target, [1] * target.ndim))
    scaled = squared_distances(target, spacing[: target.ndim])
    np.testing.assert_allclose(scaled, squares_one_by_one(target, spacing[: target.ndim]), rtol=1e-6)


def test_a_long_image_has_the_distances_of_scipy():
    """Distances beyond 4096 too, where float32 no longer holds every square."""
    target = np.zeros((3, 20011), bool)
    target[0, 5] = target[2, 301] = True
    exact = np.square(ndimage.distance_transform_edt(~target))
    np.testing.assert_allclose(squared_distances(target), exact, rtol=3e-7)


def test_squared_distances_take_at_most_6_bytes_a_voxel():
    target = np.zeros((31, 64, 83), bool)
    target[3, 4, 5] = True
    squared_distances(target[:2])  # what is imported or compiled at the first call
    tracemalloc.start()
    squared_distances(target)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 6 * target.size
