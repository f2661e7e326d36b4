import os

import numpy as np
import pytest

from segcal.cases.identity import BLOCK_BYTES, BLOCKS, content_digest, input_digest


@pytest.fixture
def path(tmp_path, rng):
    (tmp_path / "a.npy").write_bytes(rng.bytes(3 * BLOCKS * BLOCK_BYTES))
    return tmp_path / "a.npy"


def changed(path, place):
    """Change one byte, and nothing else that shows."""
    facts = path.stat()
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))


@pytest.mark.parametrize("place", [0, BLOCK_BYTES - 1, -1, -BLOCK_BYTES])
def test_a_changed_head_or_end_is_noticed_whatever_the_time(place, path):
    before = content_digest(path), input_digest(path)
    changed(path, place)
    assert content_digest(path) != before[0]
    assert input_digest(path) != before[1]


def test_the_blocks_are_spread_over_the_whole_file(path):
    size, seen = path.stat().st_size, 0
    for place in range(0, size, BLOCK_BYTES // 2):
        before = content_digest(path)
        changed(path, place)
        seen += content_digest(path) != before
    assert seen / (2 * size / BLOCK_BYTES) == pytest.approx(1 / 3, abs=0.05)


@pytest.mark.parametrize("shift", [-(10**9), 10**9])
def test_an_input_of_another_time_is_another_one_and_content_is_not(shift, path):
    before = content_digest(path), input_digest(path)
    time = path.stat().st_mtime_ns + shift
    os.utime(path, ns=(time, time))
    assert content_digest(path) == before[0]
    assert input_digest(path) != before[1]


def test_sizes_count_and_what_is_not_there_is_nothing(path, tmp_path):
    before = content_digest(path)
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 1)
    assert content_digest(path) != before
    path.write_bytes(b"")
    assert content_digest(path) != before
    assert content_digest(tmp_path / "none") == input_digest(tmp_path / "none") == ""


def test_a_folder_is_known_by_the_names_and_the_content_of_its_files(tmp_path):
    folder = tmp_path / "a.zarr"
    (folder / "c").mkdir(parents=True)
    np.save(folder / "c" / "0.npy", np.arange(5))
    digests = [content_digest(folder)]
    changed(folder / "c" / "0.npy", -1)
    digests.append(content_digest(folder))
    (folder / "c" / "0.npy").rename(folder / "c" / "1.npy")
    digests.append(content_digest(folder))
    (folder / "c" / "1.npy").unlink()
    digests.append(content_digest(folder))
    assert len(set(digests)) == 4
