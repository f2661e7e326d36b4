"""The bar of work in steps: silent in a pipe."""

import io
import sys

from segcal.benchmark.run import Step
from segcal.cli.progress import case_bar, step_bar


def test_nothing_is_shown_in_a_pipe(capsys):
    with case_bar("working", 3) as step:
        step("a")
        step()
    with step_bar("demo") as show:
        show(Step(1, 2, "predicting"))
    assert capsys.readouterr() == ("", "")


def test_a_terminal_shows_what_is_done(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    with step_bar("demo") as show:
        show(Step(1, 2, "predicting"))
        show(Step(2, 2, ""))
    assert "demo" in screen.getvalue()
    assert "2/2" in screen.getvalue()
