"""Results as bytes: they come back to the last bit, and nothing is ever made of bytes that is not listed."""

import struct
import zlib

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from segcal.evaluation.violations import Measured
from segcal.fitting.sample import Voxels
from segcal.scale.plain import KNOWN, UnknownResultError, pack, unpack
from segcal.statistics.additive import Confusion

LEAVES = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.text() | st.binary()
TREES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text() | st.integers(-9, 9) | st.tuples(st.integers(0, 3)), inner)
    ),
    max_leaves=12,
)


def same(one, other):
    """Whether two results are the same: kinds, order of keys, and the bits of every float."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        return struct.pack("d", one) == struct.pack("d", other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


@settings(max_examples=40)
@given(TREES)
def test_containers_and_numbers_come_back(value):
    assert same(unpack(pack(value)), value)


@given(arrays.arrays(st.sampled_from(["<f4", "<f8", "<i8", "u1", "?"]), arrays.array_shapes(min_dims=0, max_dims=3)))
def test_arrays_come_back_in_the_order_in_memory_that_they_had(values):
    for given_ in (values, np.asfortranarray(values), np.ascontiguousarray(values)):
        again = unpack(pack(given_))
        assert again.dtype == given_.dtype
        assert again.shape == given_.shape
        assert again.tobytes() == given_.tobytes()
        assert again.flags.f_contiguous == given_.flags.f_contiguous
        assert again.flags.writeable


def test_results_of_cases_come_back():
    assert unpack(pack(Measured(3, 1, 0.5, np.nextafter(0.1, 1)))) == Measured(3, 1, 0.5, np.nextafter(0.1, 1))
    voxels = Voxels(torch.arange(6.0).reshape(2, 3), torch.arange(3, dtype=torch.int32), torch.ones(3))
    again = unpack(pack(voxels))
    assert type(again) is Voxels
    assert again.context is None
    assert all(torch.equal(one, other) for one, other in zip(voxels[:3], again[:3], strict=True))
    table = Confusion(np.eye(3, dtype=np.int64), 4)
    assert unpack(pack(table)).ignored == 4
    assert np.array_equal(unpack(pack(table)).count, table.count)


def test_what_is_not_listed_is_neither_packed_nor_made():
    with pytest.raises(TypeError, match="complex is no result of a case"):
        pack(1j)
    assert "Popen" not in KNOWN
    for plain in (
        {"": "Popen", "of": []},
        {"": "array", "of": ["|O", [1], "C", b"12345678"]},
        {"": "Measured", "of": [1]},
    ):
        with pytest.raises(UnknownResultError):
            unpack(zlib.compress(msgspec.msgpack.encode(plain)))


@given(st.binary(max_size=60))
def test_any_bytes_are_a_result_or_refused(content):
    try:
        unpack(content)
    except UnknownResultError:
        return
    unpack(pack(unpack(content)))
