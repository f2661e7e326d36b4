import contextlib
import io
import struct
import tracemalloc
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segcal.cases import safe_io
from segcal.errors import InputError


def npy_bytes(array):
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def npy_with_header(text, version=1):
    header = text.encode() + b"\n"
    length = struct.pack("<H" if version == 1 else "<I", len(header))
    return b"\x93NUMPY" + bytes([version, 0]) + length + header


def npz_bytes(entries, compression=zipfile.ZIP_DEFLATED):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return stream.getvalue()


GOOD = npy_bytes(np.arange(24, dtype=np.float32).reshape(2, 3, 4))
ABSURD = npy_with_header("{'descr': '<f4', 'fortran_order': False, 'shape': (1000000, 1000000, 1000)}")
LYING_ZIP = bytearray(npz_bytes({"a.npy": GOOD}))
_DIRECTORY = LYING_ZIP.rindex(b"PK\x01\x02")
LYING_ZIP[_DIRECTORY + 24 : _DIRECTORY + 28] = struct.pack("<I", 4_000_000_000)

BAD_NPY = {
    "empty": b"",
    "not numpy": b"hello world" * 20,
    "cut header": GOOD[:20],
    "cut values": GOOD[:-5],
    "absurd shape": ABSURD,
    "negative shape": npy_with_header("{'descr': '<f4', 'fortran_order': False, 'shape': (-2, 3)}") + b"\0" * 24,
    "beyond any integer": npy_with_header("{'descr': '<f4', 'fortran_order': False, 'shape': (0, 10**30)}"),
    "huge zero": npy_with_header(f"{{'descr': '<f4', 'fortran_order': False, 'shape': (0, {2**70})}}"),
    "objects": npy_bytes(np.array([{"a": 1}], dtype=object)),
    "records": npy_bytes(np.zeros(3, [("x", "f4")])),
    "texts": npy_bytes(np.array(["a", "bc"])),
    "code in the header": npy_with_header("__import__('os').system('true')"),
    "long header": b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**31) + b" " * 100,
    "other version": b"\x93NUMPY\x09\x00" + b"\0" * 100,
}

BAD_NPZ = {
    "empty": b"",
    "cut": npz_bytes({"a.npy": GOOD})[:-30],
    "wrong declared size": bytes(LYING_ZIP),
    "absurd shape": npz_bytes({"a.npy": ABSURD}),
    "bomb": npz_bytes({"a.npy": ABSURD + b"\0" * 2_000_000}),
    "short entry": npz_bytes({"a.npy": GOOD[:-8]}),
    "long entry": npz_bytes({"a.npy": GOOD + b"12345678"}),
    "no array": npz_bytes({}),
    "lzma": npz_bytes({"a.npy": GOOD}, zipfile.ZIP_LZMA),
    "objects": npz_bytes({"a.npy": BAD_NPY["objects"]}),
    "damaged": npz_bytes({"a.npy": GOOD}).replace(b"\x93", b"\x00")[:60] + npz_bytes({"a.npy": GOOD})[60:],
}


def map_npy(path):
    return safe_io.NpyFile(path).values()


def read_npz(path):
    return safe_io.read_npz(path, None)


@pytest.mark.parametrize(
    ("read", "content"),
    [(map_npy, content) for content in BAD_NPY.values()] + [(read_npz, content) for content in BAD_NPZ.values()],
    ids=[*BAD_NPY, *(f"npz: {name}" for name in BAD_NPZ)],
)
def test_a_bad_file_is_an_error_with_its_name_and_allocates_nothing(read, content, tmp_path):
    path = tmp_path / "case"
    path.write_bytes(content)
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match="case"):
            np.array(read(path))
        assert tracemalloc.get_traced_memory()[1] < 30e6
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("order", "dtype"), [("C", "<f2"), ("F", ">f4"), ("F", "u1"), ("C", "?")])
def test_arrays_come_back_as_they_were_saved(order, dtype, tmp_path):
    array = np.asarray(np.arange(24).reshape(2, 3, 4), dtype, order=order)
    np.save(tmp_path / "a.npy", array)
    np.savez_compressed(tmp_path / "a.npz", array)
    for values in (map_npy(tmp_path / "a.npy"), read_npz(tmp_path / "a.npz")):
        assert values.dtype == array.dtype
        assert values.tolist() == array.tolist()


def test_what_is_done_to_a_mapped_array_does_not_reach_the_file(tmp_path):
    np.save(tmp_path / "a.npy", np.ones(3))
    map_npy(tmp_path / "a.npy")[:] = 5
    assert np.load(tmp_path / "a.npy").tolist() == [1, 1, 1]


def test_an_array_longer_than_one_piece_is_put_together(tmp_path, monkeypatch, rng):
    monkeypatch.setattr(safe_io, "_CHUNK", 1000)
    array = rng.normal(size=(3, 50, 60))
    np.savez_compressed(tmp_path / "a.npz", scores=array)
    assert np.array_equal(safe_io.read_npz(tmp_path / "a.npz", "scores"), array)


def test_an_npz_with_several_arrays_needs_a_key(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros(2), y=np.ones(2))
    assert safe_io.read_npz(tmp_path / "a.npz", "y").tolist() == [1, 1]
    with pytest.raises(InputError, match=r"has 2 arrays \(x, y\), but one is needed"):
        safe_io.read_npz(tmp_path / "a.npz", None)
    with pytest.raises(InputError, match=r"has the arrays x, y, but 'z' is needed"):
        safe_io.npz_header(tmp_path / "a.npz", "z")


def test_an_array_that_does_not_fit_in_memory_is_refused(tmp_path, monkeypatch):
    np.save(tmp_path / "a.npy", np.zeros(1000, np.int8))
    monkeypatch.setattr(safe_io, "memory_limit", lambda: 9 * 1000)  # as it is used: one byte, and eight to compute in
    assert map_npy(tmp_path / "a.npy").size == 1000
    monkeypatch.setattr(safe_io, "memory_limit", lambda: 9 * 1000 - 1)
    with pytest.raises(InputError, match=r"a\.npy needs 0\.0 GiB, but at most .* or cut the case into tiles"):
        map_npy(tmp_path / "a.npy")


def test_a_size_of_zero_does_not_hide_the_others(tmp_path):
    path = tmp_path / "case.npy"
    path.write_bytes(npy_with_header(f"{{'descr': '<f4', 'fortran_order': False, 'shape': (3, 0, {10**17})}}"))
    with pytest.raises(InputError, match=r"case\.npy needs .* GiB, but at most"):
        map_npy(path)
    with pytest.raises(InputError, match=r"nothing\.npy is missing"):
        safe_io.NpyFile(tmp_path / "nothing.npy")


@settings(max_examples=150)
@given(data=st.data())
def test_damaged_arrays_are_read_or_refused_and_nothing_else(data, tmp_path_factory):
    source = data.draw(
        st.sampled_from([GOOD, npz_bytes({"a.npy": GOOD}), npz_bytes({"a.npy": GOOD}, zipfile.ZIP_STORED)])
    )
    content = bytearray(source)
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    content = content[: data.draw(st.integers(0, len(content)))] if data.draw(st.booleans()) else content
    path = tmp_path_factory.mktemp("fuzz") / "case"
    path.write_bytes(bytes(content))
    for read in (map_npy, read_npz):
        with contextlib.suppress(InputError):
            np.array(read(path))


def test_an_entry_that_ends_before_its_declared_size_is_refused(tmp_path):
    content = bytearray(npz_bytes({"a.npy": GOOD[:-8]}))
    place = content.rindex(b"PK\x01\x02")
    content[place + 24 : place + 28] = struct.pack("<I", len(GOOD))
    (tmp_path / "case.npz").write_bytes(bytes(content))
    with pytest.raises(InputError, match=r"case\.npz ends after 88 of 96 bytes"):
        safe_io.read_npz(tmp_path / "case.npz", None)
