"""What commands say: results, documents, warnings, how far they are, and what a fit rests on."""

import io
import json
import re
import signal
import sys
import warnings
from types import SimpleNamespace

import pytest

from segcal.benchmark.run import Step
from segcal.cases import CaseError
from segcal.cli.console import (
    Output,
    case_bar,
    fit_line,
    in_options,
    step_bar,
    table,
    under_way,
    warnings_in_one_line,
)
from segcal.cli.fit import print_evidence
from segcal.errors import SuspicionWarning
from segcal.fitting.evidence import FitEvidence


def test_for_a_person_texts_and_tables_go_to_stdout(capsys):
    output = Output(as_json=False)
    output.say("a [bold] word", table(["name", "value"], [["[x]", "1"]]))
    output.document({"never": "printed"})
    output.say("word " * 100)  # in a pipe one line
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "a [bold] word"
    assert "[x]" in "".join(printed)
    assert "never" not in "".join(printed)
    assert printed[-1].count("word") == 100
    assert all(line == line.rstrip() for line in printed[:-1])


def test_as_json_there_is_the_document_alone(capsys):
    output = Output(as_json=True)
    output.say("silent", table(["name"], [["x"]]))
    output.failed(CaseError("a", "broken, pass kind='probs'."))
    output.document({"value": 1.5})
    assert json.loads(capsys.readouterr().out) == {"value": 1.5, "failed": {"a": "broken, pass --kind probs."}}
    with pytest.raises(ValueError, match="not JSON compliant"):
        output.document({"value": float("nan")})


def test_failed_cases_are_listed_on_stderr_and_decide_the_exit_code(capsys):
    output = Output(as_json=False)
    assert output.finish() == 0
    for name in ("a", "b"):
        output.failed(CaseError(name, "is broken"))
    output.warn("try ignore=3")
    assert output.finish() == 3
    assert capsys.readouterr() == ("", "warning: try --ignore 3\n2 cases failed:\n  a: is broken\n  b: is broken\n")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("pooling='mean_logits' or pooling='mean_probs'.", "--pooling mean_logits or --pooling mean_probs."),
        ("Pass format= with one of them", "Pass --format with one of them"),
        ("Choose it with label_key=.", "Choose it with --label-key."),
        ("pass ignore=-1.", "pass --ignore -1."),
        ("the monkey='x' stays", "the monkey='x' stays"),
        ("cal=3 is not an option", "cal=3 is not an option"),
    ],
)
def test_messages_of_the_library_are_put_in_the_words_of_the_command_line(text, expected):
    assert in_options(text) == expected


def test_suspicions_are_one_line_and_other_warnings_stay_as_they_are(capsys, monkeypatch):
    shown = []
    monkeypatch.setattr(warnings, "showwarning", lambda *arguments: shown.append(arguments[:4]))
    with warnings_in_one_line():
        for _ in range(2):
            warnings.warn("Declare kind='probs' if so.", SuspicionWarning, stacklevel=1)
        warnings.showwarning("other", UserWarning, "file.py", 3)
    assert capsys.readouterr().err == "warning: Declare --kind probs if so.\n" * 2
    assert shown == [("other", UserWarning, "file.py", 3)]


def test_a_pipe_is_told_now_and_then_and_at_the_end(capsys, monkeypatch):
    monkeypatch.setattr("segcal.cli.console.PERIOD", 0.0)
    monkeypatch.setattr("segcal.cli.console.TICK", 600.0)
    with case_bar("measuring", 3) as step:
        step("a")
        step()
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


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="there are no timers")
def test_a_pipe_hears_of_work_that_says_nothing_and_timers_are_as_before(capsys, monkeypatch):
    monkeypatch.setattr("segcal.cli.console.PERIOD", 0.1)
    monkeypatch.setattr("segcal.cli.console.TICK", 0.01)
    before = signal.getsignal(signal.SIGALRM)

    def heard():
        """Wait for a line, and return it without its seconds."""
        found = ""
        while not found:
            sum(range(1000))
            found = capsys.readouterr().err
        return found.splitlines()[0].rpartition(", ")[0]

    with under_way("evaluate"):
        assert heard() == "evaluate: under way"
        with case_bar("measuring", 3) as step:
            assert heard() == "measuring"
            step("a")
            assert heard() == "measuring: 1 of 3 cases"
        capsys.readouterr()
        assert heard() == "evaluate: under way"
    capsys.readouterr()
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


@pytest.mark.parametrize("quiet", [True, False], ids=["quiet", "short"])
@pytest.mark.parametrize("make", [lambda quiet: case_bar("a", 2, quiet), lambda quiet: step_bar("a", quiet),
                                  lambda quiet: fit_line("a", quiet)])  # fmt: skip
def test_what_is_quiet_or_takes_no_time_says_nothing_in_a_pipe(make, quiet, capsys, monkeypatch):
    monkeypatch.setattr("segcal.cli.console.PERIOD", 0.0 if quiet else 10.0)
    with make(quiet) as show:
        show(Step(1, 2, "reading"))
    assert capsys.readouterr() == ("", "")


def test_a_terminal_shows_what_is_done(monkeypatch):
    screen = io.StringIO()
    screen.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    with step_bar("demo") as show:
        show(Step(1, 2, "predicting"))
        show(Step(2, 2, ""))
    assert "demo" in screen.getvalue()
    assert "2/2" in screen.getvalue()


def evidence(capsys, found, bounds=(), names=None):
    certificate = SimpleNamespace(evidence=found, active_bounds=bounds)
    print_evidence(Output(False), SimpleNamespace(certificate=certificate, class_names=names))
    return capsys.readouterr()


def test_a_fit_says_what_decides_and_what_should_not_be(capsys):
    found = FitEvidence(
        9,
        (9, 2),
        (1000, 3),
        sites={"a": 5, "b": 1},
        declared=True,
        weights={"p3": 0.25},
        influence={"p4": -0.3},
        failed={"p5": 11.6},
    )
    shown = evidence(capsys, found, ("weight[0, 1] = 20",), ("road", "sign"))
    assert "groups with each class, of 9 (and voxels, about): road 9 (1,000), sign 2 (3)\n" in shown.out
    assert "also held out, declared sites: a (5 groups), b (1 group)\n" in shown.out
    worse = "are far worse than those of the other groups"
    look = "look at its labels and predictions, and keep it if both are right\n"
    assert f"warning: predictions of p3 {worse}, so it counts 0.25 times: {look}" in shown.err
    assert f"warning: predictions of p5 {worse}, with 12 times the upper quartile of NLL: {look}" in shown.err
    assert "warning: without p4 the temperature would be -30%: look at its labels and predictions\n" in shown.err
    assert "warning: 1 parameter ended at a bound (weight[0, 1] = 20)" in shown.err
    assert evidence(capsys, None) == ("", "")  # of an older calibrator


def test_of_many_classes_those_in_the_fewest_groups_are_named(capsys):
    shown = evidence(capsys, FitEvidence(30, (*[30] * 20, 1, *range(2, 13)), (5,) * 32)).out
    assert "groups with each class, of 30 (and voxels, about): class 20 1 (5), class 21 2 (5)," in shown
    assert "class 31 12 (5); all other classes in at least 12" in shown
    assert "class 0 " not in shown
