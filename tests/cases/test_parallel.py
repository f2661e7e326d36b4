"""What workers are sent must be importable there, which the functions of a test file are not: libraries lend theirs."""

import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from operator import attrgetter

import numpy as np
import psutil
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from segcal.cases import ArrayCases, CaseError, open_cases
from segcal.cases.parallel import Failures, Processes, ahead, behind, kept_processes, map_cases, map_ids
from segcal.errors import InputError


@pytest.fixture
def cases(npy_folder):
    predictions, labels, _ = npy_folder
    return open_cases(predictions, labels, kind="logits")


def fail_for_memory(case_id):
    raise MemoryError


def fail_on_second(case):
    if case.id == "a2":
        raise InputError("labels are odd, but even ones are needed. Draw them again.")
    return case.id


def test_a_case_that_fails_is_set_apart_and_the_rest_goes_on(cases):
    failures = []
    assert dict(map_cases(cases, fail_on_second, 1, failures.append)) == {c: c for c in ("a1", "b1", "b2")}
    assert [(failure.case_id, failure.reason) for failure in failures] == [
        ("a2", "labels are odd, but even ones are needed. Draw them again.")
    ]
    with pytest.raises(CaseError, match="case 'a2': labels are odd"):  # without a place for failures
        list(map_cases(cases, fail_on_second))


@pytest.mark.parametrize("workers", [1, 2])
def test_any_number_of_processes_gives_the_same_in_the_order_of_the_ids_and_fails_the_same(workers, cases, npy_folder):
    cases.members[0].path("a2").write_bytes(b"nothing")
    failures = []
    found = list(map_cases(cases, attrgetter("logits"), workers, failures.append))
    assert [case_id for case_id, _ in found] == ["a1", "b1", "b2"]
    for case_id, logits in found:
        assert np.array_equal(logits.numpy(), npy_folder[2][case_id])
        assert not logits.is_shared()  # each would keep a file open
    assert [failure.case_id for failure in failures] == ["a2"]
    assert "a2.npy cannot be read" in failures[0].reason


def test_what_ends_a_worker_or_a_case_is_one_sentence(cases):
    with pytest.raises(InputError, match=r"a worker process ended while case .* was under way.*use fewer workers"):
        list(map_ids([signal.SIGKILL, signal.SIGKILL], signal.raise_signal, 2))
    with pytest.raises(CaseError, match="case 'a': it needs more memory than there is"):
        list(map_ids(["a"], fail_for_memory))
    with pytest.raises(InputError, match="workers is 0, but at least 1 is needed"):
        list(map_cases(cases, attrgetter("id"), 0))


WHO = "__import__('os').getpid()"


class Counted(int):
    sent = 0

    def __reduce__(self):
        Counted.sent += 1
        return int, (int(self),)


def test_processes_that_are_kept_serve_several_passes_and_are_sent_what_all_cases_share_once():
    with kept_processes(2) as workers:
        passes = [{found for _, found in map_ids([WHO] * 40, eval, workers)} for _ in range(2)]
        assert [found for _, found in map_ids(["2 + 3", "7 * 11"], eval, workers)] == [5, 77]
        ids = [[number] for number in range(30)]
        shared = list(map_ids(ids, partial(sorted, key=None, reverse=Counted(1)), workers))
    assert len(passes[0] | passes[1]) <= 2
    assert os.getpid() not in passes[0]
    assert not any(psutil.pid_exists(pid) for pid in passes[0])
    assert [result for _, result in shared] == ids
    assert Counted.sent == 1


def test_one_worker_and_an_engine_are_kept_as_they_are():
    with kept_processes(1) as one, Processes(2) as engine, kept_processes(engine) as same:
        assert one == 1
        assert same is engine
    assert list(map_ids(["a"], lambda case_id: case_id, 8)) == [("a", "a")]  # a lambda cannot be sent anywhere


def run(folder, text, *arguments, **environment):
    (folder / "run.py").write_text(text, encoding="utf-8")
    command = [sys.executable, "run.py", *arguments]
    return subprocess.run(command, cwd=folder, env=os.environ | environment, capture_output=True, text=True)


STARTED = """
import threading
from segcal.cases.parallel import map_ids, process_context

if __name__ == "__main__":
    for _ in range(2):
        print(process_context().get_start_method(), dict(map_ids(["2 + 3", "7 * 11"], eval, 2)))
        threading.Thread(target=threading.Event().wait, daemon=True).start()
"""
SERVED = """
from segcal.cases.parallel import server_context
from segcal.errors import InputError

if __name__ == "__main__":
    try:
        server_context()
    except InputError as error:
        print(error)
"""
WORKING = """
import os, sys, time
from functools import partial
from pathlib import Path
from segcal.cases.parallel import map_ids

def wait(folder, case_id):
    (Path(folder) / str(os.getpid())).touch()
    time.sleep(1000)

if __name__ == "__main__":
    list(map_ids(["a", "b"], partial(wait, sys.argv[1]), 2))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere processes are spawned")
def test_a_process_without_threads_is_forked_and_one_with_threads_is_not(tmp_path):
    done = run(tmp_path, STARTED, OMP_NUM_THREADS="1")
    assert done.stdout.splitlines() == [f"{method} {{'2 + 3': 5, '7 * 11': 77}}" for method in ("fork", "forkserver")]


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere processes are spawned")
def test_a_folder_that_is_too_long_for_a_socket_is_one_sentence(tmp_path):
    place = tmp_path / ("x" * 120)
    place.mkdir()
    done = run(tmp_path, SERVED, TMPDIR=str(place))
    sentence = f"{place} is the folder for temporary files, but too long for a process to be reached"
    assert done.stdout.startswith(sentence)
    assert (done.stderr, done.returncode) == ("", 0)


def test_workers_end_with_the_process_that_started_them(tmp_path):
    (tmp_path / "run.py").write_text(WORKING, encoding="utf-8")
    (tmp_path / "pids").mkdir()
    process = subprocess.Popen([sys.executable, "run.py", str(tmp_path / "pids")], cwd=tmp_path)
    deadline = time.monotonic() + 200
    while len(list((tmp_path / "pids").iterdir())) < 2 and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    workers = [psutil.Process(int(path.name)) for path in (tmp_path / "pids").iterdir()]
    process.kill()
    process.wait()
    _, alive = psutil.wait_procs(workers, timeout=60)
    for each in alive:
        each.kill()
    assert len(workers) == 2
    assert not alive


def test_failures_pass_on_what_they_are_told_and_keep_the_first():
    told = []
    failures = Failures(told.append)
    errors = [CaseError("a", "it is torn."), CaseError("b", "it is lost.")]
    for error in errors:
        failures.take(error)
    assert told == errors
    assert str(failures.refuse_all(2)) == (
        "all 2 cases failed, but at least one is needed. First: case 'a': it is torn."
    )
    assert Failures(None).take is None


def test_code_of_a_user_is_not_read_ahead():
    read = []

    class Reading(ArrayCases):
        def read(self, case_id):
            read.append(case_id)
            return super().read(case_id)

    next(map_cases(Reading([torch.zeros(2, 3)] * 3), attrgetter("id")))
    assert read == ["0"]


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize(("number", "other"), [(1, False), (2, True)])
def test_files_are_read_by_another_thread_where_there_is_more_than_one(number, other, cases, threads, monkeypatch):
    threads(number)
    readers, read = set(), type(cases).read
    monkeypatch.setattr(
        type(cases), "read", lambda self, name: readers.add(threading.current_thread()) or read(self, name)
    )
    assert len(list(map_cases(cases, attrgetter("id")))) == 4
    assert (readers == {threading.main_thread()}) is not other
    assert len(readers) == 1


def pair(name, read):
    return name, read


@given(st.lists(st.text(max_size=3), max_size=9))
def test_every_case_is_read_and_finished_once_in_the_order_of_the_ids(ids):
    read, finished = [], []
    found = [outcome() for _, outcome in ahead(ids, lambda name: read.append(name) or len(read), pair)]
    begun = ((name, lambda name=name: finished.append(name) or len(finished)) for name in ids)
    assert found == [(name, outcome()) for name, outcome in behind(begun)]
    assert read == finished == ids
    assert found == [(name, number + 1) for number, name in enumerate(ids)]


class Following:
    """Waits in each case until the next one has begun, and tells which have."""

    def __init__(self, ids):
        self.begun = {name: threading.Event() for name in ids}

    def __call__(self, name, read=None):
        following = chr(ord(name) + 1)
        if following in self.begun:
            assert self.begun[following].wait(30)
        return "".join(sorted(each for each, event in self.begun.items() if event.is_set()))

    def begin(self):
        for name, event in self.begun.items():
            event.set()
            yield name, partial(self, name)


def test_one_case_is_read_ahead_and_one_is_finished_behind_and_no_other():
    work = Following("abcd")
    found = [outcome() for _, outcome in ahead(list("abcd"), lambda name: work.begun[name].set(), work)]
    assert found == ["ab", "abc", "abcd", "abcd"]
    assert [outcome() for _, outcome in behind(Following("abc").begin())] == ["ab", "abc", "abc"]


def test_what_cannot_be_read_is_raised_in_its_turn_and_the_rest_goes_on():
    def read(name):
        if name == "b":
            raise ValueError(name)
        return name

    found = []
    for name, outcome in ahead(list("abc"), read, pair):
        try:
            found.append(outcome())
        except ValueError as error:
            found.append(f"{name}: {error}")
    assert found == [("a", "a"), "b: b", ("c", "c")]


def test_who_stops_early_leaves_no_thread_behind():
    before = threading.active_count()
    for _, outcome in ahead(list("abcdef"), str, pair):
        outcome()
        break
    assert threading.active_count() == before


@pytest.mark.parametrize("first", [True, False])
def test_of_two_failures_the_one_of_the_earlier_case_is_told(first):
    def begin():
        yield "a", lambda: 1 / (0 if first else 1)
        raise ValueError("b cannot be begun")

    with pytest.raises(ZeroDivisionError if first else ValueError):
        list(behind(begin()))
