import os
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from segcal.errors import InputError
from segcal.target import LOCK, check_file, claim, claim_beside, entries

CSV = re.compile(b"case,")
HOLDER = """
import sys, time
from pathlib import Path
from segcal.target import claim
with claim(Path(sys.argv[1])):
    print("here", flush=True)
    time.sleep(100)
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that has a folder."""
    process = subprocess.Popen([sys.executable, "-c", HOLDER, tmp_path / "out"], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "here\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_one_process_has_a_folder_until_it_is_gone(holder, tmp_path):
    match = rf"out is being written to by another segcal \(process {holder.pid}\), but two would mix their results"
    with pytest.raises(InputError, match=match), claim(tmp_path / "out"):
        pass
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    assert (tmp_path / "out" / LOCK).exists()
    with claim(tmp_path / "out"):
        assert (tmp_path / "out" / LOCK).read_text() == f"{os.getpid()}\n"
    assert list((tmp_path / "out").iterdir()) == []


def test_a_folder_in_which_nothing_was_written_goes_again(tmp_path):
    with claim(tmp_path / "a" / "b"):
        assert entries(tmp_path / "a" / "b") == []
    assert not (tmp_path / "a" / "b").exists()
    with claim(tmp_path / "a" / "b"):
        (tmp_path / "a" / "b" / "x").touch()
    assert entries(tmp_path / "a" / "b") == ["x"]
    assert entries(tmp_path / "none") == []


def test_a_path_that_is_replaced_is_locked_beside_it(tmp_path):
    with (
        claim_beside(tmp_path / "cal"),
        claim_beside(tmp_path / "other"),
        pytest.raises(InputError, match="is being written to by another segcal"),
        claim_beside(tmp_path / "cal"),
    ):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").touch()
    match = r"file/out cannot be written to \(Not a directory\), but results go there\. Name another folder\."
    with pytest.raises(InputError, match=match), claim(tmp_path / "file" / "out"):
        pass
    with pytest.raises(InputError, match="file is a file, but a folder is needed"), claim(tmp_path / "file"):
        pass


def test_files_of_the_user_are_not_overwritten(tmp_path):
    path = tmp_path / "a.csv"
    check_file(path, CSV)
    path.touch()
    check_file(path, CSV)  # nothing is lost
    path.write_text("case,part\n")
    check_file(path, CSV)
    path.write_text("name,age\n")
    match = r"a\.csv exists and was not written by this command, but it would be lost\. Choose another name, or"
    with pytest.raises(InputError, match=match):
        check_file(path, CSV)
    check_file(path, CSV, overwrite=True)
    (tmp_path / "link").hardlink_to(path)
    for inputs in ([path], [tmp_path / "gone", tmp_path / "link"]):
        with pytest.raises(InputError, match=r"a\.csv is one of the inputs, but they are never overwritten"):
            check_file(path, re.compile(b"name,"), inputs, overwrite=True)


def test_places_for_files_are_looked_at_before_the_work(tmp_path):
    with pytest.raises(InputError, match=r"is in a folder that does not exist, but results go there\. Make the folder"):
        check_file(tmp_path / "none" / "a.csv", CSV)
    with pytest.raises(InputError, match=r"is not a file, but a result is to be written there\. Choose another"):
        check_file(tmp_path, CSV, overwrite=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/proc/uptime").is_file(), reason="a folder that not even root can write to")
def test_a_file_is_refused_where_its_folder_cannot_be_written_whether_it_is_there_or_not(tmp_path):
    for name in ("a.csv", "uptime"):
        with pytest.raises(InputError, match=r"^/proc cannot be written to \(.+\), but results go there\. Name"):
            check_file(Path("/proc") / name, CSV, overwrite=True)
    (tmp_path / "link").symlink_to("/proc/a")
    with pytest.raises(InputError, match=r"^/proc cannot be written to"), claim_beside(tmp_path / "link"):
        pass


def test_a_lock_that_a_kill_left_empty_is_a_dead_one(tmp_path):
    (tmp_path / LOCK).touch()
    with claim(tmp_path):
        assert (tmp_path / LOCK).read_text() == f"{os.getpid()}\n"
    assert list(tmp_path.iterdir()) == []


def test_however_many_come_at_once_one_has_the_folder(tmp_path):
    inside, most, had, refused = [], [], [], []

    def come():
        for _ in range(40):
            try:
                with claim(tmp_path):
                    inside.append(1)
                    most.append(len(inside))
                    inside.pop()
                    had.append(1)
            except InputError as error:
                refused.append(str(error))

    with ThreadPoolExecutor(6) as pool:
        for done in [pool.submit(come) for _ in range(6)]:
            done.result()
    assert had
    assert max(most) == 1
    assert all("is being written to by another segcal" in text for text in refused)
    assert list(tmp_path.iterdir()) == []
