"""The command from its first moment: an interruption while it imports is one line, and no traceback."""

import gc
import signal
import subprocess
import sys

import pytest

INTERRUPTED = """
import os, signal, sys

MODULE = sys.argv[1]

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == MODULE:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
from segcal_command import main
if sys.argv[2] == "ignored":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
sys.argv[1:] = ["report", "--help"]
main()
"""


def run(module, ignored=""):
    command = [sys.executable, "-c", INTERRUPTED, module, ignored]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("module", ["segcal", "segcal.cli.evaluate"])
def test_an_interruption_while_importing_is_one_line(module):
    done = run(module)
    assert done.returncode == 130
    assert done.stderr == "interrupted: nothing was begun; run the command again\n"
    assert done.stdout == ""


def test_where_interruptions_are_ignored_they_stay_so():
    done = run("numpy", "ignored")
    assert "interrupted" not in done.stderr
    assert "Traceback" not in done.stderr


def test_afterwards_an_interruption_is_what_it_was(monkeypatch):
    import segcal.cli
    from segcal_command import main

    before = signal.getsignal(signal.SIGINT)
    seen = []
    monkeypatch.setattr(gc, "freeze", lambda: None)  # which lasts
    monkeypatch.setattr(segcal.cli, "main", lambda ready: (ready(), seen.append(signal.getsignal(signal.SIGINT))))
    try:
        main()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == [before]


def test_garbage_is_searched_for_when_all_is_imported_and_not_before(monkeypatch):
    import segcal.cli
    from segcal_command import main

    seen = []
    monkeypatch.setattr(gc, "freeze", lambda: seen.append("frozen"))

    def run(ready):
        seen.append(gc.isenabled())
        ready()
        seen.append(gc.isenabled())

    monkeypatch.setattr(segcal.cli, "main", run)
    main()
    assert seen == [False, "frozen", True]
