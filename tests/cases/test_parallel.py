"""What workers are sent must be importable there, which the functions of a test file are not: libraries lend theirs."""

import os
import signal
import subprocess
import sys
import time
from functools import partial
from operator import attrgetter

import numpy as np
import psutil
import pytest
import torch

from segcal.cases import ArrayCases, CaseError, open_cases
from segcal.cases.parallel import Failures, Processes, kept_processes, map_cases, map_ids
from segcal.errors import InputError


@pytest.fixture
def cases(npy_folder):
    predictions, labels, _ = npy_folder
    return open_cases(predictions, labels, kind="logits")


@pytest.fixture
def broken(cases):
    cases.members[0].path("a2").write_bytes(b"nothing")
    return cases


def fail_for_memory(case_id):
    raise MemoryError


def fail_on_second(case):
    if case.id == "a2":
        raise InputError("labels are odd, but even ones are needed. Draw them again.")
    return case.id


def test_results_come_in_the_order_of_the_ids(cases, npy_folder):
    found = list(map_cases(cases, attrgetter("logits")))
    assert [case_id for case_id, _ in found] == ["a1", "a2", "b1", "b2"]
    for case_id, logits in found:
        assert np.array_equal(logits.numpy(), npy_folder[2][case_id])


def test_a_case_that_fails_is_set_apart_and_the_rest_goes_on(cases):
    failures = []
    assert dict(map_cases(cases, fail_on_second, 1, failures.append)) == {c: c for c in ("a1", "b1", "b2")}
    assert [(failure.case_id, failure.reason) for failure in failures] == [
        ("a2", "labels are odd, but even ones are needed. Draw them again.")
    ]


def test_without_a_place_for_failures_the_first_is_raised_with_its_case(cases):
    with pytest.raises(CaseError, match="case 'a2': labels are odd"):
        list(map_cases(cases, fail_on_second))


def test_several_processes_give_the_same_in_the_same_order_and_fail_the_same(broken, npy_folder):
    failures = []
    found = list(map_cases(broken, attrgetter("logits"), 2, failures.append))
    assert [case_id for case_id, _ in found] == ["a1", "b1", "b2"]
    for case_id, logits in found:
        assert np.array_equal(logits.numpy(), npy_folder[2][case_id])
        assert not logits.is_shared()  # each would keep a file open
    assert [failure.case_id for failure in failures] == ["a2"]
    assert "a2.npy cannot be read" in failures[0].reason


def test_a_process_that_dies_is_one_sentence():
    with pytest.raises(InputError, match=r"a worker process ended while case .* was under way.*use fewer workers"):
        list(map_ids([signal.SIGKILL, signal.SIGKILL], signal.raise_signal, 2))


def test_too_little_memory_fails_the_case():
    with pytest.raises(CaseError, match="case 'a': it needs more memory than there is"):
        list(map_ids(["a"], fail_for_memory))


WHO = "__import__('os').getpid()"


def test_processes_that_are_kept_serve_several_passes():
    with kept_processes(2) as workers:
        passes = [{found for _, found in map_ids([WHO] * 40, eval, workers)} for _ in range(2)]
        assert [found for _, found in map_ids(["2 + 3", "7 * 11"], eval, workers)] == [5, 77]
    assert len(passes[0] | passes[1]) <= 2
    assert os.getpid() not in passes[0]
    assert not any(psutil.pid_exists(pid) for pid in passes[0])


def test_one_worker_and_an_engine_are_kept_as_they_are():
    with kept_processes(1) as one, Processes(2) as engine, kept_processes(engine) as same:
        assert one == 1
        assert same is engine


def test_what_is_known_of_all_cases_is_sent_once(cases):
    class Counted(int):
        sent = 0

        def __reduce__(self):
            Counted.sent += 1
            return int, (int(self),)

    with kept_processes(2) as workers:
        found = list(
            map_ids([[number] for number in range(30)], partial(sorted, key=None, reverse=Counted(1)), workers)
        )
    assert [result for _, result in found] == [[number] for number in range(30)]
    assert Counted.sent == 1


STARTED = """
import threading
from segcal.cases.parallel import map_ids, process_context

if __name__ == "__main__":
    for _ in range(2):
        print(process_context().get_start_method(), dict(map_ids(["2 + 3", "7 * 11"], eval, 2)))
        threading.Thread(target=threading.Event().wait, daemon=True).start()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere processes are spawned")
def test_a_process_without_threads_is_forked_and_one_with_threads_is_not(tmp_path):
    (tmp_path / "run.py").write_text(STARTED, encoding="utf-8")
    alone = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "run.py"], cwd=tmp_path, env=alone, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [f"{method} {{'2 + 3': 5, '7 * 11': 77}}" for method in ("fork", "forkserver")]


SERVED = """
from segcal.cases.parallel import server_context
from segcal.errors import InputError

if __name__ == "__main__":
    try:
        server_context()
    except InputError as error:
        print(error)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere processes are spawned")
def test_a_folder_that_is_too_long_for_a_socket_is_one_sentence(tmp_path):
    (tmp_path / "run.py").write_text(SERVED, encoding="utf-8")
    place = tmp_path / ("x" * 120)
    place.mkdir()
    done = subprocess.run(
        [sys.executable, "run.py"],
        cwd=tmp_path,
        env=os.environ | {"TMPDIR": str(place)},
        capture_output=True,
        text=True,
    )
    assert done.stdout.startswith(
        f"{place} is the folder for temporary files, but too long for a process to be reached"
    )
    assert (done.stderr, done.returncode) == ("", 0)


def test_no_workers_are_refused(cases):
    with pytest.raises(InputError, match="workers is 0, but at least 1 is needed"):
        list(map_cases(cases, attrgetter("id"), 0))


def test_one_case_needs_no_second_process():
    assert list(map_ids(["a"], lambda case_id: case_id, 8)) == [("a", "a")]  # a lambda cannot be sent anywhere


def test_in_one_process_nothing_is_read_ahead():
    read = []

    class Reading(ArrayCases):
        def read(self, case_id):
            read.append(case_id)
            return super().read(case_id)

    found = map_cases(Reading([torch.zeros(2, 3)] * 3), attrgetter("id"))
    next(found)
    assert read == ["0"]


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
