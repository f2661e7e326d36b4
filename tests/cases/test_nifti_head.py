import gzip
import struct

import nibabel
import numpy as np
import pytest

from segcal.cases.nifti_head import check_head
from segcal.errors import InputError


def extended(esize, vox_offset, kind=nibabel.Nifti1Image, tail=64):
    """Return a file whose only extension declares this size."""
    content = bytearray(kind(np.ones((2, 2, 2), np.float32), np.eye(4)).to_bytes())
    length = 348 if kind is nibabel.Nifti1Image else 540
    place, code = (108, "<f") if length == 348 else (168, "<q")
    content[place : place + struct.calcsize(code)] = struct.pack(code, vox_offset)
    content[length : length + 4] = b"\1\0\0\0"
    return bytes(content[: length + 4]) + struct.pack("<ii", esize, 6) + b"\0" * tail


@pytest.mark.parametrize("kind", [nibabel.Nifti1Image, nibabel.Nifti2Image])
@pytest.mark.parametrize("ending", [".nii", ".nii.gz"])
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


def test_what_is_no_nifti_is_left_to_the_library(tmp_path):
    (tmp_path / "a.nii").write_bytes(b"x" * 400)
    check_head(tmp_path / "a.nii")
