import collections
import contextlib
import os
import pickle
import pickletools
import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segcal.cases.formats import restricted_pickle
from segcal.cases.formats.restricted_pickle import load_plain_pickle
from segcal.errors import InputError

ARRAY = np.arange(12, dtype=">i4").reshape(3, 4)
PROPERTIES = {
    "sitk_stuff": {"spacing": (1.0, 2.0, 3.0), "direction": tuple(range(9))},
    "bbox_used_for_cropping": [[np.int64(0), np.int64(4)], [0, 5]],
    "class_locations": {
        1: ARRAY,
        2: ARRAY,
        3: np.asfortranarray(ARRAY),
        4: np.zeros((0, 4)),
        (2, 3): ARRAY,
    },  # a region
    "affine": np.eye(4),
    "scalars": [np.float32(3), np.bool_(True), None, True, 2**62, -3, -1.5, b"bytes", "text", {1, 2}, frozenset("a")],
    "empty": [[], {}, ()],
}


def load(content, folder):
    path = folder / "case.pkl"
    path.write_bytes(content)
    return load_plain_pickle(path)


def same(a, b):
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and np.array_equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


@pytest.mark.parametrize("protocol", [4, 5])
def test_properties_come_back_as_python_itself_would_read_them(protocol, tmp_path):
    found = load(pickle.dumps(PROPERTIES, protocol=protocol), tmp_path)
    assert same(found, PROPERTIES)
    assert found["class_locations"][1] is found["class_locations"][2]


class Evil:
    def __reduce__(self):
        return os.system, ("touch hacked",)


# Each level holds the one below it twice: 60 levels are 2**60 values to whoever walks them.
DOUBLING = b"".join(b"\x94h" + bytes([level]) + b"\x86" for level in range(60))

BAD_PICKLES = {
    "runs a command": (pickle.dumps(Evil()), r"refers to posix\.system"),
    "protocol 0 command": (b"cos\nsystem\n(S'id'\ntR.", r"refers to os\.system"),
    "builtins": (pickle.dumps(eval), r"refers to builtins\.eval"),
    "other class": (pickle.dumps(collections.OrderedDict(a=1)), r"refers to collections\.OrderedDict"),
    "instance opcode": (b"(ios\nsystem\n.", "uses the pickle opcode INST"),
    "extension": (b"\x80\x02\x82\x01.", "uses the pickle opcode EXT1"),
    "persistent id": (b"Pabc\n.", "uses the pickle opcode PERSID"),
    "calls a text": (b"\x80\x04\x8c\x01a)R.", "calls something that is not a name"),
    "calls an array class": (b"\x80\x04\x8c\x05numpy\x8c\x07ndarray\x93K\x0a\x85R.", "calls numpy.ndarray"),
    "state of a dict": (b"\x80\x04}}b.", "sets the state of an object"),
    "fills a tuple": (b"\x80\x04)K\x01a.", "fills something that is not a list"),
    "no end": (b"\x80\x04K\x01", "cannot be read"),
    "empty": (b"", "cannot be read"),
    "empty stack": (b"\x80\x04.", "cannot be read"),
    "huge bytes": (b"\x80\x04\x8e" + struct.pack("<Q", 2**60) + b"abc.", "cannot be read"),
    "huge memo": (b"\x80\x04K\x01r" + struct.pack("<I", 2**32 - 1) + b"0.", "cannot be read|opcode POP"),
    "objects": (pickle.dumps(np.array([{}, []], dtype=object)), "cannot be read"),
    "records": (pickle.dumps(np.zeros(2, [("a", "f4")])), "cannot be read|structured"),
    "deep key": (b"\x80\x04}" + b")" + b"\x85" * 100_000 + b"K\x01s.", "nested more than 64 deep"),
    "nested tuple as key": (b"\x80\x04}K\x01\x85\x85K\x01s.", "a nested tuple as key or member"),
    "nested tuple in a set": (b"\x80\x04\x8f(K\x01\x85\x85\x90.", "a nested tuple as key or member"),
    "nested tuple in a frozen set": (b"\x80\x04(K\x01\x85\x85\x91.", "a nested tuple as key or member"),
    "nested tuple as key of a dict at once": (b"\x80\x04(K\x01\x85\x85K\x01d.", "a nested tuple as key or member"),
    "doubling key": (b"\x80\x04})" + DOUBLING + b"K\x01s.", "a nested tuple as key or member"),
    "deep list": (b"\x80\x04" + b"]" * 100_000 + b"a" * 99_999 + b".", "nested more than 64 deep"),
    "list in itself": (b"\x80\x04]\x94h\x00a.", "filled after it was put into another"),
    "circle of two": (b"\x80\x04]\x94]\x94h\x00ah\x00h\x01a.", "filled after it was put into another"),
    "long number": (b"\x80\x04\x8b" + struct.pack("<i", 1_000_000) + b"\x7f" * 1_000_000 + b".", "of 7999999 bits"),
    "shape of a text": (pickle.dumps(np.zeros(3)).replace(b"K\x03\x85", b"\x8c\x013"), "without a shape"),
    "too few bytes": (pickle.dumps(np.zeros(3)).replace(struct.pack("<d", 0) * 3, b""), "cannot be read"),
}


@pytest.mark.parametrize("name", BAD_PICKLES)
def test_anything_but_plain_data_is_refused_and_nothing_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    content, match = BAD_PICKLES[name]
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match=match) as caught:
            load(content, tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 10e6
    finally:
        tracemalloc.stop()
    assert "case.pkl" in str(caught.value)
    assert not (tmp_path / "hacked").exists()


def test_an_array_that_declares_more_than_it_holds_is_refused(tmp_path):
    content = pickle.dumps(np.zeros((3, 5), np.float32), protocol=4)
    changed = content.replace(b"K\x03K\x05", b"K\xffK\xff")
    assert changed != content
    with pytest.raises(InputError, match=r"an array of shape \(255, 255\) and dtype float32 with 60 bytes"):
        load(changed, tmp_path)


def test_a_file_beyond_the_limit_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(restricted_pickle, "MAX_PICKLE_BYTES", 10)
    with pytest.raises(InputError, match=r"but properties of a case are at most 10\. nnUNetv2_ensemble before"):
        load(pickle.dumps(PROPERTIES), tmp_path)


def test_a_file_with_too_many_steps_is_left(tmp_path, monkeypatch):
    monkeypatch.setattr(restricted_pickle, "MAX_OPCODES", 10)
    with pytest.raises(InputError, match="has too many steps"):
        load(pickle.dumps(list(range(100))), tmp_path)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
    max_leaves=20,
)


@settings(max_examples=150)
@given(value=PLAIN, protocol=st.sampled_from([3, 4, 5]))
def test_plain_data_makes_the_round_trip(value, protocol, tmp_path_factory):
    assert same(load(pickle.dumps(value, protocol=protocol), tmp_path_factory.mktemp("p")), value)


@settings(max_examples=300)
@given(data=st.data())
def test_changed_bytes_are_read_or_refused_and_nothing_else(data, tmp_path_factory):
    content = bytearray(pickle.dumps(PROPERTIES, protocol=data.draw(st.sampled_from([3, 4, 5]))))
    codes = [ord(opcode.code) for opcode in pickletools.opcodes]
    for _ in range(data.draw(st.integers(1, 6))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.sampled_from(codes) | st.integers(0, 255))
    with contextlib.suppress(InputError):
        load(bytes(content), tmp_path_factory.mktemp("p"))
