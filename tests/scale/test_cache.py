"""Results on disk: they come back to the last bit, and nothing is ever made of bytes that is not listed."""

import struct
import zlib
from functools import partial

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from segcal.cases.base import CaseError
from segcal.errors import InputError
from segcal.evaluation.audit import Measured
from segcal.fitting.voxels import Voxels
from segcal.scale import cache as caches
from segcal.scale.cache import KNOWN, CaseCache, UnknownResultError, pack, unpack
from segcal.statistics.additive import Confusion


def fail(reason):
    raise CaseError("b", reason)


def test_results_and_failures_are_found_again_the_last_of_several(tmp_path, monkeypatch):
    monkeypatch.setattr(caches, "MOST_RESULTS", 2)
    cache = CaseCache(tmp_path)
    assert cache.keep("sum", "a", "1", lambda: 0.1) == 0.1
    assert not list(tmp_path.iterdir())
    with pytest.raises(CaseError):
        cache.keep("sum", "b", "2", partial(fail, "it is broken"))
    cache.keep("sum", "a", "3", lambda: np.arange(3))
    cache.flush()
    cache.flush()
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["000000.results", "000001.results"]
    again = CaseCache(tmp_path)
    assert {key: entry.line.key for key, entry in again.entries.items()} == {("sum", "a"): "3", ("sum", "b"): "2"}
    has = [again.has("sum", name, lambda _: "3") for name in ("a", "b", "c")]
    assert (has, again.has("sum", "a", lambda _: "1"), again.has("sum", "b", lambda _: "2")) == (
        [True, False, False], False, False,
    )  # fmt: skip
    assert again.read("sum", "a").tolist() == [0, 1, 2]
    with pytest.raises(CaseError, match="case 'b': it is broken"):
        again.read("sum", "b")


def test_every_cut_of_a_block_is_noticed(tmp_path):
    cache = CaseCache(tmp_path)
    cache.keep("sum", "a", "1", lambda: 0.1)
    cache.flush()
    path = tmp_path / "000000.results"
    content = path.read_bytes()
    for size in range(len(content)):
        path.write_bytes(content[:size])
        with pytest.raises(InputError, match=r"000000\.results is damaged"):
            CaseCache(tmp_path)
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(InputError, match="is damaged"):
        CaseCache(tmp_path).read("sum", "a")


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
        assert (again.dtype, again.shape, again.tobytes()) == (given_.dtype, given_.shape, given_.tobytes())
        assert again.flags.f_contiguous == given_.flags.f_contiguous
        assert again.flags.writeable


def test_results_of_cases_come_back():
    assert unpack(pack(Measured(3, 1, 0.5, np.nextafter(0.1, 1)))) == Measured(3, 1, 0.5, np.nextafter(0.1, 1))
    voxels = Voxels(torch.arange(6.0).reshape(2, 3), torch.arange(3, dtype=torch.int32), torch.ones(3))
    again = unpack(pack(voxels))
    assert (type(again), again.context) == (Voxels, None)
    assert all(torch.equal(one, other) for one, other in zip(voxels[:3], again[:3], strict=True))
    table = unpack(pack(Confusion(np.eye(3, dtype=np.int64), 4)))
    assert table.ignored == 4
    assert np.array_equal(table.count, np.eye(3))


def test_what_is_not_listed_is_neither_packed_nor_made():
    with pytest.raises(TypeError, match="complex is no result of a case"):
        pack(1j)
    assert "Popen" not in KNOWN
    for kind, of in (("Popen", []), ("array", ["|O", [1], "C", b"12345678"]), ("Measured", [1])):
        with pytest.raises(UnknownResultError):
            unpack(zlib.compress(msgspec.msgpack.encode({"": kind, "of": of})))


@given(st.binary(max_size=60))
def test_any_bytes_are_a_result_or_refused(content):
    try:
        unpack(content)
    except UnknownResultError:
        return
    unpack(pack(unpack(content)))
