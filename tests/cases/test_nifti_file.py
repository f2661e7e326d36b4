import contextlib
import gzip
import importlib
import struct
import tracemalloc

import nibabel
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segcal.cases import nifti_file
from segcal.cases.geometry import nifti_geometry
from segcal.cases.nifti_file import check_head, usable_spacing
from segcal.errors import InputError


def nifti_bytes(shape=(3, 4, 5), dtype=np.float32):
    return nibabel.Nifti1Image(np.ones(shape, dtype), np.diag([2, 3, 4, 1])).to_bytes()


def patched(offset, content, source=None):
    changed = bytearray(source or nifti_bytes())
    changed[offset : offset + len(content)] = content
    return bytes(changed)


# Offsets in the NIfTI-1 header: dim at 40, datatype at 70, pixdim at 76, vox_offset at 108, scl_slope at 112.
ABSURD = struct.pack("<8h", 7, *[32767] * 7)
BAD = {
    "empty": b"",
    "no NIfTI": b"x" * 400,
    "cut header": nifti_bytes()[:200],
    "cut values": nifti_bytes()[:-10],
    "absurd shape": patched(40, ABSURD),
    "negative shape": patched(40, struct.pack("<8h", 3, -4, 4, 5, 1, 1, 1, 1)),
    "unknown dtype": patched(70, struct.pack("<h", 999)),
    "complex": nibabel.Nifti1Image(np.ones((2, 2, 2), np.complex64), np.eye(4)).to_bytes(),
    "NaN offset": patched(108, struct.pack("<f", float("nan"))),
    "far offset": patched(108, struct.pack("<f", 1e9)),
}


def read(path):
    return nifti_file.nifti_values(nifti_file.open_nifti(path), path)


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("ending", [".nii", ".nii.gz"])
def test_a_bad_file_is_an_error_with_its_name_and_allocates_nothing(name, ending, tmp_path):
    path = tmp_path / f"case{ending}"
    path.write_bytes(gzip.compress(BAD[name]) if ending == ".nii.gz" else BAD[name])
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match=r"case\.nii"):
            read(path)
        assert tracemalloc.get_traced_memory()[1] < 50e6
    finally:
        tracemalloc.stop()


def test_nan_voxel_sizes_and_affines_are_left_out(tmp_path):
    path = tmp_path / "a.nii"
    changed = patched(80, struct.pack("<3f", *[float("nan")] * 3))
    path.write_bytes(patched(280, struct.pack("<f", float("nan")), changed))
    image = nifti_file.open_nifti(path)
    assert nifti_file.spacing(image) is None
    assert nifti_geometry(path) == []


def test_values_and_voxel_size_are_read(tmp_path):
    affine = np.diag([-2.0, 3, 4, 1])
    nibabel.save(nibabel.Nifti1Image(np.arange(24, dtype=">i2").reshape(2, 3, 4), affine), tmp_path / "a.nii.gz")
    image = nifti_file.open_nifti(tmp_path / "a.nii.gz")
    assert nifti_file.spacing(image) == (2.0, 3.0, 4.0)
    values = nifti_file.nifti_values(image, tmp_path / "a.nii.gz")
    assert values.dtype.isnative
    assert values.ravel().tolist() == list(range(24))


def test_a_missing_library_says_which_extra_to_install(monkeypatch, tmp_path):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(InputError, match=r"nibabel is not installed.*pip install 'segcal\[nifti\]'"):
        nifti_file.open_nifti(tmp_path / "a.nii")


@settings(max_examples=100)
@given(data=st.data())
def test_damaged_headers_are_read_or_refused_and_nothing_else(data, tmp_path_factory):
    content = bytearray(nifti_bytes())
    for _ in range(data.draw(st.integers(1, 6))):
        content[data.draw(st.integers(0, 351))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("fuzz") / "case.nii"
    path.write_bytes(bytes(content))
    with contextlib.suppress(InputError):
        image = nifti_file.open_nifti(path)
        nifti_file.spacing(image)
        nifti_geometry(path)
        nifti_geometry(path, "zyx_ras")
        nifti_file.nifti_values(image, path)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_scaled_values_are_those_of_the_library_in_one_copy(dtype, tmp_path, rng):
    image = nibabel.Nifti1Image(rng.integers(0, 100, (30, 40, 50)).astype(dtype), np.eye(4))
    content = bytearray(image.to_bytes())
    content[112:120] = struct.pack("<2f", 0.3, -7.0)
    (tmp_path / "a.nii").write_bytes(content)
    expected = np.asanyarray(nibabel.load(tmp_path / "a.nii").dataobj)
    opened = nifti_file.open_nifti(tmp_path / "a.nii")
    tracemalloc.start()
    try:
        found = nifti_file.nifti_values(opened, tmp_path / "a.nii")
        assert tracemalloc.get_traced_memory()[1] < found.nbytes * 1.2 + found.size * np.dtype(dtype).itemsize
    finally:
        tracemalloc.stop()
    assert found.dtype == expected.dtype
    assert np.array_equal(found, expected)


def extended(esize, vox_offset, kind=nibabel.Nifti1Image, tail=64):
    """Return a file whose only extension declares this size."""
    content = bytearray(kind(np.ones((2, 2, 2), np.float32), np.eye(4)).to_bytes())
    length = 348 if kind is nibabel.Nifti1Image else 540
    place, code = (108, "<f") if length == 348 else (168, "<q")
    content[place : place + struct.calcsize(code)] = struct.pack(code, vox_offset)
    content[length : length + 4] = b"\1\0\0\0"
    return bytes(content[: length + 4]) + struct.pack("<ii", esize, 6) + b"\0" * tail


@pytest.mark.parametrize(
    ("kind", "ending"), [(nibabel.Nifti1Image, ".nii"), (nibabel.Nifti1Image, ".nii.gz"), (nibabel.Nifti2Image, ".nii")]
)
@pytest.mark.parametrize(
    ("esize", "vox_offset", "match"),
    [
        (2**31 - 16, 1024, r"has an extension of 2147483632 bytes, but header and extensions take at most"),
        (-16, 1024, "has an extension of -16 bytes"),
        (32, 2**30, r"has values that begin at byte 1\.07374e\+09"),
    ],
)
def test_an_extension_that_goes_beyond_the_values_is_refused(esize, vox_offset, match, ending, kind, tmp_path):
    path = tmp_path / f"case{ending}"
    content = extended(esize, vox_offset, kind)
    path.write_bytes(gzip.compress(content) if ending == ".nii.gz" else content)
    with pytest.raises(InputError, match=match):
        check_head(path)


@pytest.mark.parametrize("kind", [nibabel.Nifti1Image, nibabel.Nifti2Image])
def test_ordinary_extensions_are_let_through(kind, tmp_path):
    image = kind(np.ones((2, 2, 2), np.float32), np.eye(4))
    image.header.extensions.append(nibabel.nifti1.Nifti1Extension("comment", b"x" * 100))
    image.header.extensions.append(nibabel.nifti1.Nifti1Extension("comment", b"y" * 1000))
    for name in ("a.nii", "a.nii.gz"):
        nibabel.save(image, tmp_path / name)
        check_head(tmp_path / name)


def test_a_voxel_size_that_cannot_be_computed_with_counts_as_unknown():
    bad = [(1, 0), (1.0, -1.0), (1.0, float("nan")), [1, float("inf")], [10**400, 1], (1e300, 1), ("1", 1), "12", 5]
    assert [usable_spacing(values) for values in bad] == [None] * len(bad)
    assert usable_spacing((1, 0.5)) == usable_spacing([1.0, 0.5]) == usable_spacing(np.float32([1, 0.5])) == (1.0, 0.5)
    assert usable_spacing((1, 1), axes=3) is None
