"""No file says where something is fetched from; what is fetched goes nowhere but into a folder of this process."""

import json
import os
import pickle
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import segcal
from segcal.cases import remote
from segcal.errors import InputError
from tests.faults.places import files_of

fsspec = pytest.importorskip("fsspec", reason="needs the extra cloud")

CASES = {f"c{number}": np.full((2, 3, 4), number, np.float32) for number in range(6)}


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "there"
    place.mkdir()
    for case_id, values in CASES.items():
        np.save(place / f"{case_id}.npy", values)
    return place


@pytest.mark.parametrize("name", [".segcal-remote.json", "remote.json"])
def test_a_marker_in_a_folder_makes_nobody_contact_an_address(name, folder, tmp_path, monkeypatch):
    evil = tmp_path / "evil"
    evil.mkdir()
    for case_id in CASES:
        np.save(evil / f"{case_id}.npy", np.full((2, 3, 4), 99, np.float32))
    (folder / name).write_text(json.dumps({"url": f"file://{evil}"}))
    before = files_of(folder)
    contacted = []
    monkeypatch.setattr(fsspec.core, "url_to_fs", lambda url, **_: contacted.append(url) or pytest.fail(url))
    cases = segcal.open_cases(folder, folder, kind="logits", strict=False)
    for case_id, values in CASES.items():
        assert np.array_equal(cases.members[0].read(case_id).values, values)
    assert not contacted
    assert files_of(folder) == before


def test_the_url_travels_in_the_object_and_the_folder_that_stands_for_it_does_not(folder):
    cases = segcal.open_cases(f"file://{folder}", kind="logits")
    sent = pickle.dumps(cases)
    place = cases.members[0].folder
    for path in place.iterdir():  # as on another machine
        path.unlink()
    place.rmdir()
    again = pickle.loads(sent)
    assert np.array_equal(again.read("c3").logits, CASES["c3"])
    assert not place.exists()
    assert again.members[0].path("c3").parent != cases.members[0].path("c3").parent  # each fetches by itself


def test_at_most_a_few_files_are_kept_and_none_in_the_folder_of_names(folder):
    cases = segcal.open_cases(f"file://{folder}", kind="logits")
    for case_id in cases.ids:
        cases.read(case_id)
    place = cases.members[0].path("c5").parent
    assert sorted(path.name for path in place.iterdir()) == ["c2.npy", "c3.npy", "c4.npy", "c5.npy"]
    assert place.stat().st_mode & 0o077 == 0
    assert files_of(cases.members[0].folder) == {f"{case_id}.npy": b"" for case_id in CASES}


END = """
import sys, segcal
cases = segcal.open_cases(f"file://{sys.argv[1]}", kind="logits")
from segcal.cases.parallel import map_ids
print([case_id for case_id, _ in map_ids(cases.ids, cases.size_note, 2)])
segcal.convert(cases, sys.argv[2], workers=2)
"""


def test_what_was_fetched_goes_with_the_process_and_its_workers(folder, tmp_path):
    with tempfile.TemporaryDirectory(prefix="s") as short:  # the socket of a server of workers lies there: 108 letters
        done = subprocess.run(
            [sys.executable, "-c", END, folder, tmp_path / "store"],
            env={**os.environ, "TMPDIR": short},
            check=False,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        assert "c5" in done.stdout
        assert len(list((tmp_path / "store").glob("*.safetensors"))) == 6
        assert not list(Path(short).glob("segcal-remote-*"))


def test_a_name_that_leads_out_of_the_cache_is_refused(monkeypatch, tmp_path):
    inside = partial(remote._inside, "bucket/p")
    assert inside("bucket/p/c.zarr/c/0") == "c.zarr/c/0"
    for path in ("bucket/p/../../x", "bucket/p//etc/passwd", "bucket/other/x", "/etc/passwd"):
        with pytest.raises(InputError, match=r"has a name that leads out of bucket/p, but a plain one is needed"):
            inside(path)


def test_a_folder_with_such_a_name_is_not_fetched(tmp_path):
    class Hostile(fsspec.get_filesystem_class("file")):
        def find(self, path, **_):
            return {f"{path}/../../../escaped.npy": {"size": 3}}

    there = tmp_path / "there" / "c.zarr"
    there.mkdir(parents=True)
    made = remote.Remote(f"file://{tmp_path}/there")
    with pytest.raises(InputError, match="leads out of"):
        remote._fetch(made._cache(Hostile()), f"file://{there}")
    assert not list(tmp_path.rglob("escaped.npy"))
