import json
import os
import subprocess
import sys

import numpy as np
import pytest

from segcal.atomic import temporary
from segcal.cases.records import BLOCK_BYTES, BLOCKS, MARKER, Records, content_digest, input_digest, read_marker
from segcal.errors import InputError


def place(folder, case_id, made_from, **files):
    """Write the files of a case, one folder among them if its name says so."""
    with temporary(folder) as beside:
        for name, content in files.items():
            path = beside / name.replace("__", "/")
            path.parent.mkdir(exist_ok=True)
            if name.endswith("zarr"):
                path.mkdir()
                path = path / "0"
            path.write_text(content)
        return Records(folder).place(case_id, made_from, beside, [name.replace("__", "/") for name in files])


def test_a_case_is_done_if_it_was_made_from_this_and_is_as_it_was_written(tmp_path):
    records = Records(tmp_path)
    assert records.done("a", "1") is None
    assert place(tmp_path, "a", "1", a="x", azarr="y") == (tmp_path / "a", tmp_path / "azarr")
    assert set(records.done("a", "1").files) == {"a", "azarr"}
    assert records.done("a", "2") is None
    assert records.done("b", "1") is None
    (tmp_path / "azarr" / "0").write_text("")  # cut short
    assert records.done("a", "1") is None
    place(tmp_path, "a", "1", a="x", azarr="y")
    assert records.done("a", "1")
    (tmp_path / "a").unlink()
    assert records.done("a", "1") is None


@pytest.mark.parametrize("text", ["", "{", '{"files": {}}', '{"format": "segcal-record", "version": 1, "files": 3}'])
def test_a_record_that_cannot_be_read_is_none(text, tmp_path):
    place(tmp_path, "a", "1", a="x")
    (tmp_path / ".segcal" / "a.json").write_text(text)
    assert Records(tmp_path).done("a", "1") is None


def test_files_of_an_earlier_result_go_and_those_that_were_changed_stay(tmp_path):
    place(tmp_path, "a", "1", a="x", map__a="y")
    place(tmp_path, "a", "2", a="z")
    assert [path.name for path in (tmp_path / "map").iterdir()] == []
    place(tmp_path, "a", "1", a="x", map__a="y")
    (tmp_path / "map" / "a").write_text("mine")
    place(tmp_path, "a", "2", a="z")
    assert (tmp_path / "map" / "a").read_text() == "mine"


def test_results_without_an_input_are_named_and_removed_only_when_asked(tmp_path):
    records = Records(tmp_path)
    place(tmp_path, "a", "1", a="x")
    place(tmp_path, "b", "1", b="x", bzarr="y")
    (tmp_path / "mine").touch()
    assert records.others(["a", "c"]) == ["b"]
    records.remove(["b", "c"])
    assert sorted(path.name for path in tmp_path.iterdir()) == [".segcal", "a", "mine"]
    assert records.others([]) == ["a"]


def test_a_file_without_a_record_is_not_ours(tmp_path):
    records = Records(tmp_path)
    place(tmp_path, "a", "1", a="x")
    records.require_own("a", ["a", "none"])
    (tmp_path / "b").touch()
    match = r"holds b, of which segcal has no record, but a result would take its place\. Name a new folder\."
    for case_id in ("a", "b"):
        with pytest.raises(InputError, match=match):
            records.require_own(case_id, ["a" if case_id == "a" else "b", "b"])


@pytest.mark.parametrize("name", ["../mine", "/mine"])
def test_a_record_that_names_files_elsewhere_is_none(name, tmp_path):
    folder = tmp_path / "out"
    place(folder, "a", "1", a="x")
    path = folder / ".segcal" / "a.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"files": {name: next(iter(content["files"].values()))}}))
    (tmp_path / "mine").write_text("x")
    Records(folder).remove(["a"])
    assert (tmp_path / "mine").exists()


KILLED = """
import os, sys
from pathlib import Path
from segcal import atomic
from segcal.cases import records
put, count = atomic.put, 0
def dying(source, target, durable=False):
    global count
    put(source, target, durable)
    count += 1
    if count == int(sys.argv[2]):
        os.kill(os.getpid(), 9)
records.put = dying
folder = Path(sys.argv[1])
with atomic.temporary(folder) as beside:
    (beside / "a").write_text("new")
    (beside / "azarr").mkdir()
    (beside / "azarr" / "0").write_text("new")
    records.Records(folder).place("a", "2", beside, ["a", "azarr"])
"""


@pytest.mark.parametrize(("moment", "anew"), [(1, False), (3, False), (2, True)])
def test_a_kill_between_the_files_of_a_case_leaves_it_to_be_done_again(moment, anew, tmp_path):
    if not anew:
        place(tmp_path, "a", "1", a="old", azarr="old")
    killed = subprocess.run([sys.executable, "-c", KILLED, tmp_path, str(moment)], check=False)
    assert killed.returncode == -9
    records = Records(tmp_path)
    assert records.done("a", "1") is None
    assert (records.done("a", "2") is None) == (moment < 3)
    records.require_own("a", ["a", "azarr"])  # whatever is there is known to be ours
    there = [path for path in (tmp_path / "a", tmp_path / "azarr" / "0") if not anew or path.exists()]
    assert {path.read_text() for path in there} <= {"old", "new"}
    place(tmp_path, "a", "2", a="new", azarr="new")
    assert records.done("a", "2")
    assert os.listdir(tmp_path / "azarr") == ["0"]  # noqa: PTH208


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


def test_a_changed_head_or_end_is_noticed_whatever_the_time_and_blocks_are_spread_over_the_file(path):
    for place in (0, BLOCK_BYTES - 1, -1, -BLOCK_BYTES):
        before = content_digest(path), input_digest(path)
        changed(path, place)
        assert content_digest(path) != before[0]
        assert input_digest(path) != before[1]
    size, seen = path.stat().st_size, 0
    for place in range(0, size, BLOCK_BYTES // 2):
        before = content_digest(path)
        changed(path, place)
        seen += content_digest(path) != before
    assert seen / (2 * size / BLOCK_BYTES) == pytest.approx(1 / 3, abs=0.05)


def test_time_and_size_count_of_inputs_and_size_alone_of_content(path, tmp_path):
    for shift in (-(10**9), 2 * 10**9):
        before = content_digest(path), input_digest(path)
        time = path.stat().st_mtime_ns + shift
        os.utime(path, ns=(time, time))
        assert content_digest(path) == before[0]
        assert input_digest(path) != before[1]
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


def test_only_what_segcal_applied_is_calibrated(tmp_path):
    assert read_marker(tmp_path) is None
    (tmp_path / MARKER).write_text(json.dumps({"camera": 1}))
    assert read_marker(tmp_path) is None
    (tmp_path / MARKER).write_text(json.dumps({"format": "segcal-applied", "version": 2}))
    assert read_marker(tmp_path) == {"format": "segcal-applied", "version": 2}
