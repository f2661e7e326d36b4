"""The options and the output of the command; the study itself is tested where it is run."""

import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest

from paper.loss_study import __main__ as command


@pytest.fixture
def run(capsys):
    """Run the command and return its exit code, and what it printed."""

    def call(*arguments):
        try:
            code = command.main([str(argument) for argument in arguments])
        except SystemExit as stopped:
            code = stopped.code
        return SimpleNamespace(code=code, **capsys.readouterr()._asdict())

    return call


@pytest.fixture
def asked(monkeypatch):
    """Take the place of the study and remember what it was asked for."""
    calls, missing = [], [0]

    def run_study(wanted, say):
        calls.append(wanted)
        say("30 s: half of it")
        return missing[0]

    monkeypatch.setattr(command, "run_study", run_study)
    monkeypatch.setattr(
        command, "write_page", lambda archives, folder, small, missing: folder / f"{small}-{missing}.md"
    )
    return calls, missing


def test_it_says_where_the_page_is(run, asked, tmp_path):
    done = run("run", "--out", tmp_path, "--tasks", "roads", "--seeds", 1, "--main", "--small")
    assert done.code == 0
    assert f"Written: {tmp_path / 'True-0.md'}, {tmp_path / 'losses.zip'}" in done.out
    assert "30 s: half of it" in done.err
    wanted = asked[0][0]
    assert (wanted.folder, wanted.tasks, wanted.seeds, wanted.main, wanted.small) == (
        tmp_path,
        ("roads",),
        1,
        True,
        True,
    )
    assert wanted.deadline == math.inf
    assert len(wanted.units()) == 8


def test_hours_are_a_deadline(run, asked, tmp_path):
    run("run", "--out", tmp_path, "--hours", "0.5", "--trainers", 2, "--at-once", 3, "--measurers", 4)
    wanted = asked[0][0]
    assert (wanted.deadline, wanted.trainers, wanted.at_once, wanted.measurers) == (1800, 2, 3, 4)


def test_what_is_missing_is_said_and_seen_in_the_code(run, asked, tmp_path):
    asked[1][0] = 2
    done = run("run", "--out", tmp_path, "--main", "--seeds", 1, "--json")
    assert done.code == 3
    document = json.loads(done.out)
    assert (document["missing"], document["page"]) == (2, str(tmp_path / "False-2.md"))
    assert (
        "2 networks of 24 missing: run the command again" in run("run", "--out", tmp_path, "--main", "--seeds", 1).out
    )


def test_without_any_network_there_is_no_page(run, asked, tmp_path):
    asked[1][0] = 8
    done = run("run", "--out", tmp_path, "--main", "--seeds", 1, "--tasks", "roads")
    assert done.code == 3
    assert "No network is measured yet, so there is no page" in done.out


def test_without_matplotlib_nothing_is_begun(run, asked, tmp_path, monkeypatch):
    monkeypatch.setattr(command.importlib.util, "find_spec", lambda name: None)
    done = run("run", "--out", tmp_path)
    assert done.code == 2
    assert "error: matplotlib is not installed" in done.err
    assert not asked[0]


@pytest.mark.parametrize(
    "wrong", [("--seeds", "0"), ("--tasks", "lungs"), ("--at-once", "x"), ("--hours", "0"), ("--hours", "nan")]
)
def test_mistakes_are_one_sentence(run, asked, tmp_path, wrong):
    done = run("run", "--out", tmp_path, *wrong)
    assert done.code == 2
    assert "error: " in done.err
    assert not asked[0]


def test_the_page_of_the_docs_is_made_by_one_command(run, tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(command, "write_docs", lambda archives, docs: made.append((archives, docs)))
    assert run("docs", "a.zip", "b.zip", "--docs", tmp_path).code == 0
    assert made == [([Path("a.zip"), Path("b.zip")], tmp_path)]
