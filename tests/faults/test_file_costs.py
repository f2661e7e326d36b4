"""Small files that ask for much: each is refused in one sentence before it costs much memory or time.

All are read by one process that may take one gigabyte more than it has, with a time limit for each. Before, every one
of them hung, or took all the memory that there was.
"""

import gzip
import json
import os
import pickle
import resource
import signal
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest

SECONDS = 60
PROBS = np.full((2, 4, 5), 0.5, np.float32)
GIGABYTE = 1 << 30


def zarr_store(folder, **options):
    import zarr

    stored = zarr.create_array(str(folder / "a.zarr"), shape=PROBS.shape, chunks=PROBS.shape, dtype="f4", **options)
    stored[...] = PROBS
    return folder / "a.zarr"


def chunk_of(store):
    return next(file for file in store.rglob("*") if file.is_file() and file.name != "zarr.json")


def zarr_many_chunks(folder):
    """18 million chunks of a byte, of which one is there; the others would be read as nothing."""
    store = zarr_store(folder)
    content = json.loads((store / "zarr.json").read_text())
    content |= {"shape": [2, 3000, 3000], "data_type": "uint8", "fill_value": 0}
    content["chunk_grid"]["configuration"]["chunk_shape"] = [1, 1, 1]
    (store / "zarr.json").write_text(json.dumps(content))


def zarr_gzip(folder):
    from zarr.codecs import GzipCodec

    chunk_of(zarr_store(folder, compressors=[GzipCodec()])).write_bytes(gzip.compress(bytes(200_000)) * 10_000)


def rle_blocks(blocks):
    """Return a zstd frame that does not say its size, of blocks that each repeat one byte 128 Ki times."""
    each = [
        ((1 << 17) << 3 | 1 << 1 | (number == blocks - 1)).to_bytes(3, "little") + b"\0" for number in range(blocks)
    ]
    return b"\x28\xb5\x2f\xfd\x00\x58" + b"".join(each)


def zarr_zstd(folder):
    from zarr.codecs import ZstdCodec

    chunk_of(zarr_store(folder, compressors=[ZstdCodec()])).write_bytes(rle_blocks(20_000))


def zarr_zstd_frames(folder):
    """Every frame says its size, which is that of the chunk."""
    from numcodecs.zstd import Zstd
    from zarr.codecs import ZstdCodec

    frame = bytes(Zstd().encode(bytes(100_000)))
    chunk_of(zarr_store(folder, compressors=[ZstdCodec()])).write_bytes(frame * 20_000)


def zarr_blosc(folder):
    from zarr.codecs import BloscCodec

    chunk = chunk_of(zarr_store(folder, compressors=[BloscCodec()]))
    content = bytearray(chunk.read_bytes())
    content[4:8] = struct.pack("<I", 2**31 - 100)
    chunk.write_bytes(content)


def zarr_shard(folder):
    import google_crc32c  # which zarr itself uses
    from zarr.codecs import ZstdCodec

    store = zarr_store(folder, shards=PROBS.shape, compressors=[ZstdCodec()])
    bomb = rle_blocks(20_000)
    index = struct.pack("<QQ", 0, len(bomb))
    chunk_of(store).write_bytes(bomb + index + struct.pack("<I", google_crc32c.value(index)))


def nnunet_one_list_many_times(folder):
    """A list of 100,000 numbers that stands 100,000 times in another: a pickle of some hundred kilobytes."""
    numbers = list(range(100_000))
    properties = {"shape_before_cropping": [2, 2], "bbox_used_for_cropping": [numbers] * 100_000, "spacing": [1, 1]}
    (folder / "a.pkl").write_bytes(pickle.dumps(properties, 4))
    np.savez(folder / "a.npz", probabilities=PROBS)
    (folder / "dataset.json").write_text(json.dumps({"labels": {"background": 0, "x": 1}, "file_ending": ".nii.gz"}))


def json_of_many_lists(folder):
    (folder / "splits.json").write_text('{"cal": [' + "[]," * 8_000_000 + "[]]}")


def toml_long_name(folder):
    (folder / "protocol.toml").write_text("a." * 100_000 + "a = 1\n")


def summary_pipe(folder):
    os.mkfifo(folder / "summary.json")


def png_of_long_text(folder):
    """Ten chunks of text that unpack to 80 MB each."""

    def chunk(name, content):
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    text = chunk(b"zTXt", b"k\0\0" + zlib.compress(bytes(80_000_000), 1))
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 5, 4, 8, 0, 0, 0, 0))
    rows = chunk(b"IDAT", zlib.compress(bytes(4 * 6)))
    (folder / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n" + head + text * 10 + rows + chunk(b"IEND", b""))


def read_case(folder):
    import segcal

    segcal.open_cases(folder, kind="probs", strict=False).read("a")


def read_split(folder):
    from segcal.cases.split import load_split

    load_split(None, folder / "splits.json")


def read_protocol(folder):
    from segcal.benchmark.protocol import load_protocol

    load_protocol(folder / "protocol.toml")


def read_summary(folder):
    from segcal.summary import read_summary as read

    read(folder)


def read_label(folder):
    from segcal.cases.labels import read_label_file

    read_label_file(folder / "a.png", (4, 5))


UNPACKS = "unpacks to more than the 160 bytes of a chunk"
FILES = {
    make.__name__: (make, read, match)
    for make, read, match in [
        (zarr_many_chunks, read_case, "has 18000000 chunks, but at most 200000 can be read"),
        (zarr_gzip, read_case, UNPACKS),
        (zarr_zstd, read_case, UNPACKS),
        (zarr_zstd_frames, read_case, UNPACKS),
        (zarr_blosc, read_case, UNPACKS),
        (zarr_shard, read_case, UNPACKS),
        (nnunet_one_list_many_times, read_case, "a.pkl has no valid bbox_used_for_cropping"),
        (json_of_many_lists, read_split, "more than 4000000 entries"),
        (toml_long_name, read_protocol, "256 dots in a line"),
        (summary_pipe, read_summary, "summary.json is a pipe or a device, but a file is needed"),
        (png_of_long_text, read_label, "a.png cannot be read"),
    ]
}


def read_all(root):
    """Read every file in this process, whose memory is limited, and print what came of each."""
    import zarr  # noqa: F401 - what every child would import again

    import segcal
    from segcal.errors import SegcalError

    segcal.open_cases  # noqa: B018 - which imports the readers

    size = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (size + GIGABYTE, size + GIGABYTE))
    for name, (_, read, _) in FILES.items():
        child = os.fork()  # one that does not end says nothing, and the next begins
        if child:
            os.waitpid(child, 0)
            continue
        signal.alarm(SECONDS)
        try:
            read(Path(root) / name)
            said = "read"
        except SegcalError as error:
            said = str(error)
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        print(json.dumps({name: said}), flush=True)
        os._exit(0)


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """Return what reading each file said."""
    pytest.importorskip("zarr")
    root = tmp_path_factory.mktemp("costs")
    for name, (make, _, _) in FILES.items():
        (root / name).mkdir()
        make(root / name)
    done = subprocess.run([sys.executable, __file__, str(root)], capture_output=True, text=True, check=False)
    found = {}
    for line in done.stdout.splitlines():
        found |= json.loads(line)
    return found | {"stderr": done.stderr}


@pytest.mark.parametrize("name", FILES)
def test_a_small_file_that_asks_for_much_is_refused(name, said):
    assert name in said, f"did not end: {said['stderr'][-2000:]}"
    assert FILES[name][2] in said[name]
    assert "MemoryError" not in said[name]


if __name__ == "__main__":
    read_all(sys.argv[1])
