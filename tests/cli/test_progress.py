"""How far a command is: a bar on a terminal, a line now and then in a pipe, nothing if asked for."""

import io
import re
import sys

import pytest

from segcal.benchmark.run import Step
from segcal.cli.progress import case_bar, fit_line, step_bar


def test_a_pipe_is_told_now_and_then_and_at_the_end(capsys, monkeypatch):
    monkeypatch.setattr("segcal.cli.progress.PERIOD", 0.0)
    with case_bar("measuring", 3) as step:
        step("a")
        step("b")
    lines = capsys.readouterr().err.splitlines()
    assert [line.rpartition(", ")[0] for line in lines] == [f"measuring: {n} of 3 cases" for n in (1, 2, 2)]
    assert re.fullmatch(r"measuring: 1 of 3 cases, \d+ s", lines[0])
    with step_bar("benchmark") as show:
        show(Step(1, 2, "reading"))
        show(Step(2, 2, ""))
    assert re.match(r"reading: 1 of 2, \d+ s\nbenchmark: 2 of 2, ", capsys.readouterr().err)
    with fit_line("fitting") as report:
        report("ts: step 3")
    assert capsys.readouterr().err.startswith("fitting: ts: step 3, ")


@pytest.mark.parametrize(
    "make", [lambda: case_bar("a", 2, True), lambda: step_bar("a", True), lambda: fit_line("a", True)]
)
def test_quiet_is_quiet(make, capsys, monkeypatch):
    monkeypatch.setattr("segcal.cli.progress.PERIOD", 0.0)
    with make() as show:
        show(Step(1, 2, "reading"))
    assert capsys.readouterr() == ("", "")


def test_what_takes_no_time_says_nothing_in_a_pipe(capsys):
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
