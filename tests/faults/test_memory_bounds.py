"""Memory is accounted for as it is used: every command stays within its own factor, and refuses what does not fit.

Measured in a process of its own, as the peak beyond what it had before, on cases of two sizes; the difference is what
the larger ones need more. Freed memory goes back to the system at once, as that of large cases does by itself.
"""

import json
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import segcal
from segcal import memory
from segcal.cases.base import CaseError
from segcal.memory import Footprint

TOLERANCE = 6 << 20  # bytes: what the allocator and the libraries may take more
SPACES = {"few": (2, 4), "small": (5, 128), "large": (20, 128)}  # slices, and the side of each
TIMES = {"few": 1, "small": 1, "large": 2}  # the smaller peak counts: a thread that was late can only add to it
CLASSES, MEMBERS, CASES = 4, 2, 3
COMMANDS = ("check", "fit", "evaluate", "apply", "trust", "decide", "monitor", "audit", "convert")

SCRIPT = """
import contextlib, ctypes, gc, io, json, pathlib, sys
from segcal.cli import main
from segcal.evaluation import audit, slabs
from segcal.trust import sums

slabs.STEP_VALUES = audit.STEP_VALUES = sums.STEP_VALUES = 1 << 16  # cut into slabs, as large cases are

def kilobytes(name):
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name + ":"))

for size, command, call in json.loads(pathlib.Path(sys.argv[1]).read_text()):
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    pathlib.Path("/proc/self/clear_refs").write_text("5")
    before, said = kilobytes("VmRSS"), io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            code = main(call)
    except SystemExit as ended:
        code = ended.code
    print(json.dumps([size, command, code or 0, (kilobytes("VmHWM") - before) << 10, said.getvalue()[-500:]]))
"""


def write_cases(home, slices, side):
    """Write members as compressed half-precision probabilities, which are unpacked, converted, clipped and pooled."""
    rng = np.random.default_rng(0)
    shape = (CLASSES, slices, side, side)
    for number in range(CASES):
        labels = np.arange(np.prod(shape[1:])).reshape(shape[1:]) // (1 + side // 3) % CLASSES
        for member in range(MEMBERS):
            scores = rng.normal(size=shape).astype(np.float32) + 2 * (labels == np.arange(CLASSES)[:, None, None, None])
            probs = np.exp(scores) / np.exp(scores).sum(0)
            (home / f"m{member}").mkdir(parents=True, exist_ok=True)
            np.savez(home / f"m{member}" / f"c{number}.npz", probs.astype(np.float16))
        (home / "labels").mkdir(exist_ok=True)
        np.save(home / "labels" / f"c{number}.npy", labels.astype(np.uint8))


def calls_of(home, out):
    members = [str(home / f"m{number}") for number in range(MEMBERS)]
    labels, cal, how = str(home / "labels"), str(home / out / "cal"), ["--kind", "probs", "--pooling", "mean_probs"]
    return {
        "check": ["check", *members, labels, *how],
        "fit": ["fit", *members, labels, *how, "--calibrator", "ts", "-o", cal],
        "evaluate": ["evaluate", *members, labels, *how, "--calibrator", cal],
        "apply": ["apply", cal, *members, *how, "-o", str(home / out / "applied")],
        "trust": ["trust", cal, *members, *how, "-o", str(home / out / "trust"), "--level", "0.6"],
        "decide": ["decide", cal, *members, *how, "-o", str(home / out / "decided"), "--rule", "dice"],
        "monitor": ["monitor", cal, *members, *how],
        "audit": ["audit", cal, *members, *how],
        "convert": ["convert", *members, "--labels", labels, *how, "-o", str(home / out / "store")],
    }


@pytest.fixture(scope="module")
def peaks(tmp_path_factory):
    """Return the peak of every command on cases of every size; the first run of each loads libraries."""
    home = tmp_path_factory.mktemp("bounds")
    calls = []
    for size, space in SPACES.items():
        write_cases(home / size, *space)
        for time in range(TIMES[size]):
            calls += [(size, command, call) for command, call in calls_of(home / size, f"out{time}").items()]
    (home / "calls").write_text(json.dumps(calls))
    threads = {"OMP_NUM_THREADS": "2", "NUMBA_NUM_THREADS": "2"}  # with two, the next case is read meanwhile
    trimmed = {"MALLOC_MMAP_THRESHOLD_": "262144", "MALLOC_TRIM_THRESHOLD_": "262144"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(home / "calls")],
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
        env=os.environ | threads | trimmed,
    )
    found = {}
    for size, command, code, peak, said in map(json.loads, done.stdout.splitlines()):
        assert code in (0, 4), said
        found[size, command] = min(peak, found.get((size, command), peak))
    return found


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peaks are measured on Linux")
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_needs_no_more_than_its_factor_says(command, peaks):
    values = {size: CLASSES * slices * side**2 for size, (slices, side) in SPACES.items()}
    shapes = {size: (CLASSES, slices, side, side) for size, (slices, side) in SPACES.items()}
    stated = {size: Footprint(command).needed(shape, np.dtype(np.float16)) for size, shape in shapes.items()}
    more = peaks["large", command] - peaks["small", command]
    assert more < stated["large"] - stated["small"] + TOLERANCE
    assert more > values["large"] - values["small"]  # the peak of a case is seen at all


@pytest.mark.parametrize(("work", "kilobytes"), [(segcal.evaluate, 30), (segcal.check, 30)], ids=["evaluate", "check"])
def test_what_is_kept_of_a_case_is_some_kilobytes(work, kilobytes):
    """Of a case of 100 kB: a row of numbers, what the bootstrap draws, and the map of a profile."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(2, 64, 64))
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(0)

    def peak(count):
        cases = segcal.as_cases([logits] * count, [labels] * count, kind="logits")
        tracemalloc.start()
        work(cases)
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    peak(20)
    assert peak(700) - peak(400) < 300 * kilobytes * 1000


@pytest.fixture
def folders(tmp_path):
    for name in ("predictions", "labels"):
        (tmp_path / name).mkdir()
    logits = np.random.default_rng(0).normal(size=(3, 20, 30)).astype(np.float32)
    for case, values in (("a", logits), ("b", logits[:, :2])):
        np.save(tmp_path / "predictions" / f"{case}.npy", values)
        np.save(tmp_path / "labels" / f"{case}.npy", values.argmax(0).astype(np.uint8))
    return tmp_path


def test_a_case_that_does_not_fit_is_refused_before_it_is_read(folders, monkeypatch):
    cases = segcal.open_cases(folders / "predictions", labels=folders / "labels", kind="logits")
    cases.footprint = Footprint("evaluate", 2, 50_000)
    read = []
    monkeypatch.setattr(type(cases.members[0]), "read", lambda self, case_id: read.append(case_id))
    text = (
        r"case 'a': it needs about 8.16e-05 GB with segcal evaluate, but 5e-05 GB is free for each of 2 workers. "
        r"Use fewer workers, a larger machine, or cut the case into tiles, as docs/howto/maps.md shows."
    )
    with pytest.raises(CaseError, match=text):
        cases.read("a")
    assert read == []


def test_the_command_shares_what_is_free_and_goes_on_with_what_fits(folders, monkeypatch, capsys):
    from segcal.cli import main

    monkeypatch.setattr(memory, "free_memory", lambda: 50_000)
    call = [str(folders / "predictions"), str(folders / "labels"), "--kind", "logits"]
    with pytest.raises(SystemExit, match="3"):
        main(["evaluate", *call])
    assert "needs about 8.16e-05 GB with segcal evaluate, but 5e-05 GB is free" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="3"):
        main(["check", *call, "--json"])
    assert "needs about 6.72e-05 GB with segcal check, but 5e-05 GB is free" in capsys.readouterr().out
