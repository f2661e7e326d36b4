"""Dask workers, one of them killed on the way: the results of one process, to the last byte."""

import logging
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import psutil
import pytest

import segcal
from segcal.cases import CaseError

distributed = pytest.importorskip("distributed", reason="needs the extra cluster")
from segcal.scale.dask_engine import DaskEngine  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # of libraries that Dask brings


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cases")
    rng = np.random.default_rng(3)
    for name in ("predictions", "labels"):
        (folder / name).mkdir()
    for number in range(9):
        scores = (3 * rng.normal(size=(3, 80 + number, 90))).astype(np.float32)
        np.save(folder / "predictions" / f"c{number}.npy", scores)
        labels = (scores / 2 + rng.gumbel(size=scores.shape)).argmax(0).astype(np.uint8)
        np.save(folder / "labels" / f"c{number}.npy", labels)
    (folder / "predictions" / "c4.npy").write_bytes(b"nothing")
    return segcal.open_cases(folder / "predictions", folder / "labels", kind="logits")


@pytest.fixture(scope="module")
def engine():
    with DaskEngine(workers=2) as made:
        yield made


def measure(cases, workers):
    failed = []
    found = segcal.evaluate(
        cases, segcal.make_calibrator("ts", 3), workers=workers, failed=failed.append, replicates=50
    )
    return repr(found.to_plain()), [str(error) for error in failed]


def test_results_are_those_of_one_process_and_failures_too(cases, engine):
    alone = measure(cases, 1)
    assert measure(cases, engine) == alone
    assert len(alone[1]) == 1


def test_cases_that_go_together_come_apart_in_their_order_and_fail_alone(cases, engine):
    ids = list(cases.ids) * 16  # two in a bundle
    assert len(next(engine._bundles(ids))) == 2
    found = []
    for case_id, outcome in engine.outcomes(ids, cases.checked, ""):
        try:
            found.append(outcome().id)
        except CaseError as error:
            found.append(f"{error.case_id} failed")
        assert found[-1].split()[0] == case_id
    assert found == [name if name != "c4" else "c4 failed" for name in ids]


def test_a_worker_that_is_killed_does_not_show(cases, engine):
    ids = [name for name in cases.ids if name != "c4"] * 12
    alone = [segcal.make_calibrator("ts", 3)(cases.read(name).logits[None]).sum().item() for name in ids]
    killed = []

    def kill():
        time.sleep(0.05)
        pids = engine.client.run(os.getpid)
        killed.append(next(iter(pids.values())))
        os.kill(killed[0], signal.SIGKILL)

    thread = threading.Thread(target=kill)
    found = []
    for number, (_, outcome) in enumerate(engine.outcomes(ids, SlowSum(cases), "")):
        if number == 0:
            thread.start()
        found.append(outcome())
    thread.join()
    assert killed
    assert found == alone
    levels = engine.client.run(lambda: logging.root.manager.disable).values()
    assert set(levels) == {logging.CRITICAL}, "a worker writes to the terminal of the one who waits"


class SlowSum:
    """Sums a case, and takes its time."""

    def __init__(self, cases):
        self.cases = cases

    def __call__(self, case_id):
        time.sleep(0.02)
        return segcal.make_calibrator("ts", 3)(self.cases.read(case_id).logits[None]).sum().item()


@pytest.mark.parametrize(("name", "memory"), [("cms_ap", 1 << 20), ("ts", 1 << 30)], ids=["streamed", "kept"])
def test_an_exact_fit_to_all_voxels_is_the_same_to_the_last_bit(name, memory, cases, engine):
    """With little memory every pass goes over the cases: workers send sums, and the solver runs here."""
    config = segcal.FitConfig(voxels="all", lam=1e-3, mu=1e-3, memory=memory)
    fits = [
        segcal.fit(name, cases, config=config, workers=workers, failed=lambda error: None) for workers in (1, engine)
    ]
    first, second = fits
    assert first.certificate == second.certificate
    assert first.certificate.kkt_residual < 1e-5
    for one, other in zip(first.calibrator.parameters(), second.calibrator.parameters(), strict=True):
        assert one.numpy().tobytes() == other.numpy().tobytes()


def test_strengths_chosen_on_held_out_cases_are_the_same(cases, engine):
    config = segcal.FitConfig(voxels="all", memory=1 << 20)
    given = {"config": config, "names": ["ts", "ms"], "preserve": "none", "allow_offset_dependent": True}
    chosen = [segcal.choose(cases, workers=each, failed=lambda error: None, **given) for each in (1, engine)]
    assert chosen[0].certificate == chosen[1].certificate
    drawn = segcal.FitConfig(voxels=50)
    sampled = [segcal.fit("ms", cases, config=drawn, workers=each, failed=lambda error: None) for each in (1, engine)]
    assert sampled[0].certificate == sampled[1].certificate


def command_of(process):
    """Return the command line of a process, or nothing if it has ended meanwhile."""
    try:
        return str(process.cmdline())
    except psutil.Error:
        return ""


def test_an_interruption_of_all_processes_is_one_line_and_leaves_none(cases, tmp_path):
    """Ctrl-C on a terminal reaches workers too, who leave it to the process that started them."""
    words = [str(cases.members[0].folder), str(cases.label_folder.folder), "--kind", "logits", "-o", tmp_path / "out"]
    code = "import time, segcal.cases.files as f; read = f.FileCases.read\n"
    code += "f.FileCases.read = lambda self, case_id: time.sleep(1000) or read(self, case_id)\n"
    (tmp_path / "sitecustomize.py").write_text(code, encoding="utf-8")  # of every process: no worker reads a case
    command = [sys.executable, "-c", "import segcal_command; segcal_command.main()", "evaluate", *words]
    running = subprocess.Popen(
        [*command, "--engine", "dask", "--workers", "2"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        start_new_session=True, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    deadline, forks = time.monotonic() + 200, []
    while len(forks) < 3 and running.poll() is None and time.monotonic() < deadline:  # a server and two workers
        time.sleep(0.5)
        forks = [
            each for each in psutil.Process(running.pid).children(recursive=True) if "forkserver" in command_of(each)
        ]
    time.sleep(2)  # workers that listen
    os.killpg(running.pid, signal.SIGINT)
    _, errors = running.communicate(timeout=100)
    said = [line for line in errors.splitlines() if "under way" not in line]  # a slow machine hears of its progress
    assert said == ["interrupted: what is written is complete; run the command again to go on"]
    assert running.returncode == 130
    assert not psutil.wait_procs(forks, timeout=30)[1]
