"""The campaign of benchmarks/campaign: some trials of every kind find nothing, and its judge finds what is planted.

Both run in processes of their own: trials are forks, and a process that has threads is no place to fork from.
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.campaign.judge import in_form
from benchmarks.campaign.trials import KINDS, plan

ROOT = Path(__file__).parents[2]
TRIALS, SEED = 12, 5


def python(*arguments):
    places = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": places},
    )


def test_some_trials_of_every_kind_find_nothing():
    for extra in ("nibabel", "zarr", "fsspec"):
        pytest.importorskip(extra)
    done = python("-m", "benchmarks.campaign", "--trials", str(TRIALS), "--seed", str(SEED), "--workers", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    counts = dict(re.findall(r"(?m)^(\w+) +(\d+) trials: nothing$", done.stdout))
    assert set(counts) == set(KINDS)
    assert sum(map(int, counts.values())) == len(plan(TRIALS)) >= TRIALS


def lose_a_file(work):
    (work / "notes.txt").unlink()


def change_a_file(work):
    (work / "notes.txt").write_text("gone")


def replace_a_link(work):
    (work / "link").unlink()
    (work / "link").write_text("what the user knows")


def write_beside_the_target(work):
    (work / "elsewhere").write_text("x")


def write_outside(work):
    Path("/tmp/campaign-must-not-write-this").write_text("x")


def ask_for_an_address(work):
    with pytest.raises(OSError, match="no network"):
        socket.create_connection(("planted.invalid", 80))


def ask_for_a_url(work):
    fsspec = pytest.importorskip("fsspec")
    fsspec.core.url_to_fs("memory://planted")


def execute_data(work):
    exec("x = 'campaign_payload'")


def unpickle_code(work):
    import pickle

    with pytest.raises(PermissionError):
        pickle.loads(b"cos\nsystem\n(S'true'\ntR.")


def start_a_program(work):
    with pytest.raises(PermissionError):
        subprocess.run(["true"], check=False)


def crash(work):
    os.kill(os.getpid(), signal.SIGSEGV)


def hang(work):
    time.sleep(60)


def ask_for_memory(work):
    bytearray(1 << 40)


def leave_something(work):
    (work / "new").mkdir()
    (work.parent / "tmp" / "segcal-x").write_text("x")


def raise_a_type_error(work):
    len(3)


def raise_without_a_reason(work):
    from segcal.errors import InputError

    raise InputError("unhashable type: 'list'")


def write_to_the_target(work):
    (work / "new").mkdir()
    (work / "new" / "result.json").write_text("{}")


def refuse_in_form(work):
    from segcal.errors import InputError

    raise InputError("k is 3, but 2 is needed. Use 2.")


PLANTED = {
    lose_a_file: ["lost"],
    change_a_file: ["lost"],
    replace_a_link: ["lost"],
    write_beside_the_target: ["outside"],
    write_outside: ["outside", "traceback"],
    ask_for_an_address: ["address"],
    ask_for_a_url: ["url"],
    execute_data: ["code"],
    unpickle_code: ["code", "program"],
    start_a_program: ["program"],
    crash: ["crash"],
    hang: ["hang"],
    ask_for_memory: ["memory"],
    leave_something: ["leftover"],
    raise_a_type_error: ["traceback"],
    raise_without_a_reason: ["message"],
    write_to_the_target: [],
    refuse_in_form: [],
}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Return the kinds of faults that the judge finds in each planted step."""
    done = python(__file__, str(tmp_path_factory.mktemp("judge")))
    return json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {"error": done.stderr}


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.__name__)
def test_the_judge_finds_what_is_planted(planted, found):
    assert found.get(planted.__name__) == PLANTED[planted], found.get("error")


def test_messages_in_the_form_of_the_house_are_known():
    assert in_form("p has 3 files, but 4 are needed. Add one.")
    assert in_form("a.npy cannot be read (TypeError: 'int' object is not iterable), but it is needed. Export it again.")
    assert not in_form("[Errno 17] File exists: 'link.txt'")
    assert not in_form("'int' object is not iterable, but. No.")


def judge_all(place):
    """Run every planted step in a box of its own, and print the kinds of faults that were found."""
    from benchmarks.campaign.judge import judge, look, worst
    from benchmarks.campaign.watch import Step, run_step

    said = {}
    for planted in PLANTED:
        root = Path(place) / planted.__name__
        for name in ("work", "home", "tmp"):
            (root / name).mkdir(parents=True)
        (root / "work" / "notes.txt").write_text("what the user knows")
        (root / "work" / "link").symlink_to("notes.txt")
        step = Step(lambda planted=planted, root=root: planted(root / "work"), [root / "work" / "new"])
        before = look(root)
        outcome = run_step(step, root, seconds=2 if planted is hang else 60)
        said[planted.__name__] = [name for name, _ in worst(judge(step, root, before, look(root), outcome, {}))]
    print(json.dumps(said))


if __name__ == "__main__":
    judge_all(sys.argv[1])
