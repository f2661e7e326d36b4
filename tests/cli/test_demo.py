"""``segcal demo``: what it prints; the demonstration itself is tested where it is told."""

from pathlib import Path

import pytest

from segcal.cli import demo
from segcal.demo.story import Story
from segcal.report.table import Cell, Column, Group, Row, Table


@pytest.fixture
def asked(monkeypatch):
    """Take the place of the demonstration and remember what it was asked for."""
    calls = []
    table = Table("Before and after", "", (Column("NLL"),), (Group("roads", (Row("ts", (Cell(0.25),)),)),))

    def tell(plan, folder, progress):
        calls.append((plan, folder))
        return Story(
            table, ("roads: fine.",), plan.reduced, {"padding": "no mask"}, (folder / "tables",), {"roads": "ts"}
        )

    monkeypatch.setattr(demo, "tell_story", tell)
    return calls


def test_it_prints_the_table_the_verdict_what_was_reduced_and_where_files_are(run, asked):
    done = run("demo", "--workers", "2")
    assert done.code == 0
    assert "0.250" in done.out
    assert "- roads: fine." in done.out
    assert "Reduced, to take minutes (segcal demo --full runs everything):" in done.out
    assert "no padding study: no mask" in done.out
    assert f"- {Path('demo-results') / 'tables'}" in done.out
    plan, folder = asked[0]
    assert (plan.protocol.workers, plan.protocol.repeats, folder) == (2, 1, Path("demo-results"))


@pytest.mark.parametrize("before", [True, False])
def test_the_first_run_on_a_machine_says_that_it_compiles(run, asked, monkeypatch, before):
    monkeypatch.setattr(demo, "was_compiled", lambda loop: before)
    assert ("compiles what it counts with and keeps it" in run("demo").out) is not before


def test_full_reduces_nothing(run, asked, tmp_path):
    done = run("demo", "--full", "--out", tmp_path / "here", "--workers", "1")
    assert "Reduced" not in done.out
    assert asked[0][0].protocol.repeats == 3
    assert asked[0][1] == tmp_path / "here"


def test_json_is_one_document(run, asked, tmp_path):
    done = run("demo", "--json", "--out", tmp_path)
    assert done.document["verdict"] == ["roads: fine."]
    assert done.document["chosen"] == {"roads": "ts"}
    assert done.document["written"] == [str(tmp_path / "tables")]


def test_at_least_one_process_is_needed(run, asked):
    done = run("demo", "--workers", "0")
    assert (done.code, asked) == (2, [])
    assert "--workers is 0, but at least 1 is needed" in done.err
