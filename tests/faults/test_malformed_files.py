"""Crafted files, made small on the fly: each is refused in one sentence, within bounded memory and time.

All are read by one process whose memory is limited, on a machine that seems to have 64 MiB to give to an array. A file
of some kilobytes that asks for more is refused for what it asks; `MemoryError` would mean that it was believed.
"""

import gzip
import json
import os
import resource
import signal
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

LIMIT = 64 << 20
SECONDS = 120
LOGITS = np.random.default_rng(0).normal(size=(3, 4, 5)).astype(np.float32)


def npy_header(shape, descr="<f4"):
    text = str({"descr": descr, "fortran_order": False, "shape": shape}).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def nifti_header(shape, slope=1.0, code=2, bits=8, vox_offset=352.0):
    """Return a NIfTI-1 header and the flag that extensions follow."""
    header = bytearray(348)
    struct.pack_into("<i", header, 0, 348)
    struct.pack_into("<8h", header, 40, len(shape), *shape, *[1] * (7 - len(shape)))
    struct.pack_into("<2h", header, 70, code, bits)
    struct.pack_into("<8f", header, 76, *[1.0] * 8)
    struct.pack_into("<3f", header, 108, vox_offset, slope, 0.0)
    header[344:348] = b"n+1\0"
    return bytes(header)


def npy_shape_with_a_zero(path):
    path.with_suffix(".npy").write_bytes(npy_header((3, 0, 10**17)))


def npy_huge_shape(path):
    path.with_suffix(".npy").write_bytes(npy_header((3, 10**6, 10**6)) + bytes(100))


def npy_shape_beyond_integers(path):
    path.with_suffix(".npy").write_bytes(npy_header((3, 10**4000)))


def npy_scores_of_3e38(path):
    np.save(path.with_suffix(".npy"), np.where(LOGITS > 0, np.float32(3e38), LOGITS))


def npy_pipe(path):
    os.mkfifo(path.with_suffix(".npy"))


def npy_link_to_a_device(path):
    path.with_suffix(".npy").symlink_to("/dev/zero")


def npy_link_to_itself(path):
    path.with_suffix(".npy").symlink_to(path.with_suffix(".npy"))


def npz_packed_zeros(path):
    with zipfile.ZipFile(path.with_suffix(".npz"), "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", npy_header((3, 2_500_000)) + bytes(30_000_000))


def nifti_scaled_integers(path):
    content = nifti_header((200, 200, 100, 3), slope=0.5) + bytes(4) + bytes(12_000_000)
    path.with_suffix(".nii.gz").write_bytes(gzip.compress(content))


def nifti_long_extension(path):
    content = nifti_header((2, 2, 2, 3), vox_offset=2.0**31) + b"\1\0\0\0" + struct.pack("<ii", 10**8, 6) + bytes(10**8)
    path.with_suffix(".nii.gz").write_bytes(gzip.compress(content))


def zarr_metadata(folder, **entries):
    import zarr

    stored = zarr.create_array(str(folder), shape=LOGITS.shape, chunks=LOGITS.shape, dtype=LOGITS.dtype)
    stored[...] = LOGITS
    content = json.loads((folder / "zarr.json").read_text())
    (folder / "zarr.json").write_text(json.dumps(content | entries))


def zarr_without_a_chunk(path):
    zarr_metadata(path.with_suffix(".zarr"))
    next(file for file in path.with_suffix(".zarr").rglob("*") if file.is_file() and file.name != "zarr.json").unlink()


def zarr_large_in_bytes(path):
    zarr_metadata(path.with_suffix(".zarr"), shape=[3, 2_000_000])


def zarr_shape_with_a_zero(path):
    zarr_metadata(path.with_suffix(".zarr"), shape=[3, 0, 10**17])


def zarr_link_in_a_circle(path):
    zarr_metadata(path.with_suffix(".zarr"))
    (path.with_suffix(".zarr") / "again").symlink_to(path.with_suffix(".zarr"))


def zarr_link_to_elsewhere(path):
    zarr_metadata(path.with_suffix(".zarr"))
    (path.with_suffix(".zarr") / "passwords").symlink_to("/etc/passwd")


def zarr_pipe_as_chunk(path):
    zarr_metadata(path.with_suffix(".zarr"))
    chunk = next(file for file in path.with_suffix(".zarr").rglob("*") if file.is_file() and file.name != "zarr.json")
    chunk.unlink()
    os.mkfifo(chunk)


def zarr_deep_metadata(path):
    zarr_metadata(path.with_suffix(".zarr"))
    (path.with_suffix(".zarr") / "zarr.json").write_text("[" * 100_000)


def safetensors_of_eight_bits(path):
    header = json.dumps({"a": {"dtype": "F8_E4M3", "shape": [3, 20], "data_offsets": [0, 60]}}).encode()
    path.with_suffix(".safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(60))


MAKERS = {
    make.__name__: (make, match)
    for make, match in [
        (npy_shape_with_a_zero, "a.npy needs"),
        (npy_huge_shape, "a.npy needs"),
        (npy_shape_beyond_integers, "a.npy has no valid shape"),
        (npy_scores_of_3e38, "a.npy has values up to 3e+38 in size, but at most 1e+10"),
        (npy_pipe, "a.npy is a pipe or a device, but a file is needed"),
        (npy_link_to_a_device, "a.npy is a pipe or a device, but a file is needed"),
        (npy_link_to_itself, "a.npy cannot be read"),
        (npz_packed_zeros, "a.npz needs 0.1 GiB, but at most"),
        (nifti_scaled_integers, "a.nii.gz needs 0.1 GiB, but at most"),
        (nifti_long_extension, "a.nii.gz has values that begin at byte 2.14748e+09"),
        (zarr_without_a_chunk, "a.zarr has no chunk, but values are needed"),
        (zarr_large_in_bytes, "a.zarr needs 0.1 GiB, but at most"),
        (zarr_shape_with_a_zero, "a.zarr needs"),
        (zarr_link_in_a_circle, "again is a link, a pipe or a device, but a zarr store holds folders and files"),
        (zarr_link_to_elsewhere, "passwords is a link, a pipe or a device"),
        (zarr_pipe_as_chunk, "is a link, a pipe or a device"),
        (zarr_deep_metadata, "nested more than 64 deep"),
        (safetensors_of_eight_bits, "a.safetensors has dtype F8_E4M3, but plain numbers are needed"),
    ]
}


def good_case(folder, ending):
    """Put a readable case beside the crafted one, so that the folder can be opened."""
    import nibabel
    from safetensors.numpy import save_file

    write = {
        "npy": lambda path: np.save(path, LOGITS),
        "npz": lambda path: np.savez(path, LOGITS),
        "zarr": zarr_metadata,
        "nii": lambda path: nibabel.save(
            nibabel.Nifti1Image(np.moveaxis(LOGITS, 0, -1)[..., None, :], np.eye(4)), path
        ),
        "safetensors": lambda path: save_file({"a": LOGITS}, path),
    }
    write[ending](folder / f"b.{ending}")


def read_all(root):
    """Read every crafted file in this process, whose memory is limited, and print what came of each."""
    import segcal
    from segcal.cases import safe_io
    from segcal.errors import InputError

    safe_io.memory_limit = lambda: LIMIT
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * os.sysconf("SC_PAGE_SIZE") + (1 << 30)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    said = {}
    for name in MAKERS:
        signal.alarm(SECONDS)  # ends the process: whatever is missing from its output did not end
        folder = Path(root) / name
        try:
            cases = segcal.open_cases(folder, kind="logits", strict=False)
            cases.read("b")
            cases.read("a")
            said[name] = "read"
        except InputError as error:
            said[name] = str(error)
        except BaseException as error:
            said[name] = f"{type(error).__name__}: {error}"
        print(json.dumps({name: said[name]}), flush=True)


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """Return what reading each crafted file said."""
    pytest.importorskip("zarr")
    pytest.importorskip("nibabel")
    root = tmp_path_factory.mktemp("malformed")
    for name, (make, _) in MAKERS.items():
        (root / name).mkdir()
        make(root / name / "a")
        ending = next((root / name).iterdir()).name.split(".")[1]
        good_case(root / name, ending)
    done = subprocess.run([sys.executable, __file__, str(root)], capture_output=True, text=True, check=False)
    found = {}
    for line in done.stdout.splitlines():
        found |= json.loads(line)
    return found | {"stderr": done.stderr}


@pytest.mark.parametrize("name", MAKERS)
def test_a_crafted_file_is_refused_in_one_sentence(name, said):
    assert name in said, f"did not end: {said['stderr'][-2000:]}"
    text = said[name]
    assert text.startswith("case 'a': ")
    assert MAKERS[name][1] in text
    assert "MemoryError" not in text
    assert "\n" not in text
    assert len(text) < 800


if __name__ == "__main__":
    read_all(sys.argv[1])
