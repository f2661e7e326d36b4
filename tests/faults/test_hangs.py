"""Nothing waits for ever: neither for a worker that is killed, whenever it dies, nor for a pipe in place of a file."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from segcal.benchmark import run as benchmark
from segcal.benchmark.protocol import Pipeline
from segcal.benchmark.results import Unit, finished
from segcal.cases.parallel import Processes, map_ids
from segcal.errors import InputError
from segcal.studies.page import _reduced

SECONDS = 240
PID = "__import__('os').getpid()"


def test_a_worker_that_dies_between_two_passes_is_one_sentence():
    with Processes(2) as workers:
        pids = {pid for _, pid in map_ids([PID] * 8, eval, workers)}
        os.kill(pids.pop(), signal.SIGKILL)
        passes = (list(map_ids([PID] * 2, eval, workers)) for _ in range(10_000))  # the pool notices it a moment later
        with pytest.raises(InputError, match=r"a worker process ended while case .* was under way"):
            list(passes)


def test_a_worker_of_a_benchmark_that_dies_is_one_sentence(monkeypatch, tmp_path):
    class Pool:
        def __init__(self, *_, **__):
            pass

        def submit(self, *_):
            broken = Future()
            broken.set_exception(BrokenProcessPool("a child process terminated abruptly"))
            return broken

        def shutdown(self, **_):
            pass

    monkeypatch.setattr(benchmark, "ProcessPoolExecutor", Pool)
    with pytest.raises(InputError, match=r"a worker process ended while jobs were under way.*use fewer workers"):
        benchmark._run(["a", "b"], SimpleNamespace(workers=2), tmp_path, benchmark.Step(0, 2, ""), lambda step: None)


def forks(pid):
    """The children of a process that run what it runs: libraries start others for a moment."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        found += [int(child) for child in task.read_text().split()]
    return [child for child in found if _command(child) == _command(pid)]


def _command(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except FileNotFoundError:
        return b""


@pytest.mark.skipif(sys.platform != "linux", reason="workers are found in /proc")
def test_the_command_ends_when_a_worker_is_killed(tmp_path):
    for name in ("predictions", "labels"):
        (tmp_path / name).mkdir()
    logits = np.random.default_rng(0).normal(size=(3, 64, 64)).astype(np.float32)
    for number in range(60):
        np.save(tmp_path / "predictions" / f"c{number:02d}.npy", logits)
        np.save(tmp_path / "labels" / f"c{number:02d}.npy", logits.argmax(0).astype(np.uint8))
    call = ["evaluate", str(tmp_path / "predictions"), str(tmp_path / "labels"), "--kind", "logits", "--workers", "2"]
    command = subprocess.Popen(
        [sys.executable, "-c", "import sys; from segcal.cli import main; sys.exit(main(sys.argv[1:]))", *call],
        env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},  # its workers are forks, its children
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        end = time.monotonic() + SECONDS
        while not (own := forks(command.pid)) and command.poll() is None and time.monotonic() < end:
            time.sleep(0.01)
        os.kill(own[0], signal.SIGKILL)
        _, said = command.communicate(timeout=SECONDS)
    finally:
        command.kill()
    assert command.returncode == 2
    assert "a worker process ended while case" in said


def test_a_pipe_among_the_results_of_a_benchmark_is_one_sentence(tmp_path):
    unit = Unit(task="task", repeat=0, pipeline=Pipeline("single", "ts"))
    assert not finished(tmp_path, unit, "")
    (tmp_path / unit.path).parent.mkdir(parents=True)
    os.mkfifo(tmp_path / unit.path)
    with pytest.raises(InputError, match=r"jsonl is a pipe or a device, but a file is needed\. Move it away"):
        finished(tmp_path, unit, "")
    os.mkfifo(tmp_path / "verdict.json")
    assert _reduced(tmp_path) == []
