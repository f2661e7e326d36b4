import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from segcal import atomic
from segcal.atomic import (
    MARKER,
    SIGNATURE,
    NotWrittenError,
    put,
    remove_leftovers,
    temporary,
    write_bytes,
    write_text,
    written,
)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def run(code, *arguments):
    """Run a script in a process of its own and return its exit code."""
    return subprocess.run([sys.executable, "-c", code, *map(str, arguments)], check=False).returncode


def old_and_new(tmp_path):
    (tmp_path / "cal").mkdir()
    (tmp_path / "cal" / "a").write_text("old")
    return tmp_path / "cal"


def test_files_are_written_as_a_whole_with_the_user_s_rights_and_nothing_stays(tmp_path):
    before = os.umask(0o027)
    try:
        assert write_text(tmp_path / "new" / "a.txt", "é\r\n\u2028") == tmp_path / "new" / "a.txt"
    finally:
        os.umask(before)
    write_bytes(tmp_path / "new" / "b", memoryview(b"123"))
    assert (tmp_path / "new" / "a.txt").read_bytes() == "é\r\n\u2028".encode()
    assert (tmp_path / "new" / "a.txt").stat().st_mode & 0o777 == 0o640
    assert names(tmp_path / "new") == ["a.txt", "b"]


def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path):
    write_text(tmp_path / "a", "old")

    def interrupted():
        with written(tmp_path / "a") as beside:
            beside.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert names(tmp_path) == ["a"]
    assert (tmp_path / "a").read_text() == "old"


def test_a_name_as_long_as_names_may_be_is_written(tmp_path):
    write_text(tmp_path / ("x" * 255), "text")
    assert names(tmp_path) == ["x" * 255]


@pytest.mark.parametrize("at_once", [True, False])
def test_a_folder_takes_the_place_of_another(at_once, tmp_path, monkeypatch):
    target = old_and_new(tmp_path)
    if not at_once:
        monkeypatch.setattr(atomic, "_exchange", lambda one, other: False)
    with written(target) as beside:
        beside.mkdir()
        (beside / "b").write_text("new")
    assert names(tmp_path) == ["cal"]
    assert names(target) == ["b"]


def test_a_folder_that_cannot_take_its_place_leaves_the_old_one(tmp_path, monkeypatch):
    target = old_and_new(tmp_path)
    monkeypatch.setattr(atomic, "_exchange", lambda one, other: False)
    with temporary(tmp_path) as beside:
        (beside / "cal").mkdir()
        rename = type(target).rename

        def fail(path, to):
            if path == beside / "cal":
                raise OSError(errno.EIO, "broken")
            return rename(path, to)

        monkeypatch.setattr(type(target), "rename", fail)
        with pytest.raises(OSError, match="broken"):
            put(beside / "cal", target)
        assert names(target) == ["a"]


KILLED = """
import os, sys
from pathlib import Path
from segcal import atomic
place, moment = Path(sys.argv[1]), sys.argv[2]
if moment == "between":  # as where two renames are needed
    atomic._exchange = lambda one, other: False
    rename = Path.rename
    def then_die(path, to):
        rename(path, to)
        os.kill(os.getpid(), 9)
    Path.rename = then_die
else:
    remove = atomic._remove
    atomic._remove = lambda beside: os.kill(os.getpid(), 9)
with atomic.written(place / "cal") as beside:
    beside.mkdir()
    (beside / "b").write_text("new")
    if moment == "before":
        os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize(("moment", "left"), [("before", "a"), ("between", "a"), ("after", "b")])
def test_a_kill_at_any_moment_leaves_the_old_folder_or_the_new_one(moment, left, tmp_path):
    target = old_and_new(tmp_path)
    assert run(KILLED, tmp_path, moment) == -9
    assert len(names(tmp_path)) == (1 if moment == "between" else 2)  # with what it left
    remove_leftovers(tmp_path)
    assert names(tmp_path) == ["cal"]
    assert names(target) == [left]


def test_only_what_a_dead_process_left_is_swept_away(tmp_path):
    for name, content in {
        ".segcal-0123456789abcdef": None,  # the name without the marker
        ".segcal-0123456789abcdee": b"another",  # the marker of something else
        ".segcal-x": SIGNATURE,
        ".cache": SIGNATURE,
    }.items():
        (tmp_path / name).mkdir()
        if content is not None:
            (tmp_path / name / MARKER).write_bytes(content)
    (tmp_path / ".git").mkdir()
    (tmp_path / ".a.part").write_text("mine")
    (tmp_path / ".segcal-0123456789abcdea").symlink_to(tmp_path / ".cache")
    before = names(tmp_path)
    with temporary(tmp_path) as beside:
        remove_leftovers(tmp_path, tmp_path / "nowhere")
        assert beside.is_dir()  # its writer lives
        assert names(tmp_path) == sorted([*before, beside.name])
    assert names(tmp_path) == before
    dead = tmp_path / ".segcal-0123456789abcdeb"
    dead.mkdir()
    (dead / MARKER).write_bytes(SIGNATURE)
    (dead / "half").write_bytes(b"1")
    remove_leftovers(tmp_path)
    assert names(tmp_path) == before


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
import numpy as np
from segcal.atomic import NotWrittenError, written
try:
    with written(sys.argv[1]) as beside:
        np.save(beside, np.zeros(10000))
except NotWrittenError as error:
    sys.exit(0 if sys.argv[1] in str(error) else 1)
"""


def test_what_cannot_be_written_is_named(tmp_path):
    assert run(LIMITED, tmp_path / "scores.npy") == 0
    assert names(tmp_path) == []
    (tmp_path / "folder").mkdir()
    match = r"folder could not be written \(Is a directory\), but it is needed\. Make room or choose another target,"
    with pytest.raises(NotWrittenError, match=match), written(tmp_path / "folder") as beside:
        np.array(1).tofile(beside)


def test_an_interruption_stays_one_though_a_library_trips_over_it(tmp_path):
    def interrupted():
        try:
            raise KeyboardInterrupt
        finally:
            raise OSError(9, "Bad file descriptor")

    with pytest.raises(KeyboardInterrupt), atomic.naming(tmp_path / "a"):
        interrupted()


def test_an_interruption_while_clearing_away_leaves_nothing(tmp_path, monkeypatch):
    remove, calls = shutil.rmtree, []

    def interrupted(path, **how):
        calls.append(path)
        if len(calls) == 1:
            raise KeyboardInterrupt
        remove(path, **how)

    monkeypatch.setattr(shutil, "rmtree", interrupted)
    with pytest.raises(KeyboardInterrupt), temporary(tmp_path):
        pass
    assert (len(calls), list(tmp_path.iterdir())) == (2, [])


def test_an_interruption_at_the_first_moment_leaves_nothing(tmp_path, monkeypatch):
    make = Path.mkdir

    def interrupted(path, *args, **how):
        make(path, *args, **how)
        if path.parent == tmp_path:
            raise KeyboardInterrupt

    monkeypatch.setattr(Path, "mkdir", interrupted)
    with pytest.raises(KeyboardInterrupt), temporary(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []
