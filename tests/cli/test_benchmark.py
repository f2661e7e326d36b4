"""``segcal benchmark`` from a file to tables, and what ``segcal demo`` prints; the story is tested where it is told."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from segcal.cli import benchmark
from segcal.demo.story import Story
from segcal.report.table import Cell, Column, Group, Row, Table
from segcal.target import claim

PROTOCOL = """
repeats = 2
metrics = ["nll", "dice", "ece", "ba_ece", "ace", "flip_rate", "free_energy_std"]
pipelines = [
  {pooling = "mean_logits", calibrator = "identity"},
  {pooling = "mean_logits", calibrator = "ms"},
  {pooling = "mean_logits", calibrator = "dc"},
]
split = {cal = 3, val = 2}
fit = {lam = 1e-3, mu = 1e-3}
studies = ["offsets", "flips", "binning", "reliability", "covariate_shift"]
bootstrap = {replicates = 50}

[[tasks]]
name = "blobs"
members = ["member_0", "member_1"]
labels = "labels"
kind = "logits"
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("benchmark")
    rng = np.random.default_rng(0)
    for name in ("labels", "member_0", "member_1"):
        (place / name).mkdir()
    for number in range(9):
        rough = rng.normal(size=(3, 9, 7)).cumsum(1)
        np.save(place / "labels" / f"c{number}.npy", rough.argmax(0).astype(np.uint8))
        for member in range(2):
            noisy = rough + 2 * rng.normal(size=rough.shape)
            np.save(place / f"member_{member}" / f"c{number}.npy", noisy.astype(np.float32))
    (place / "protocol.toml").write_text(PROTOCOL, encoding="utf-8")
    return place


def test_it_ends_with_tables_leaves_files_of_the_user_and_parts_give_the_same_bytes(folder, tmp_path, run, files_of):
    mine = {name: tmp_path / "one" / name for name in (".cache/x", ".git/config", "notes.part", "calibrators.txt")}
    for path in mine.values():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("precious")
    command = ["benchmark", folder / "protocol.toml"]
    done = run(*command, "-o", tmp_path / "one")
    assert done.code == 0
    study = "no covariate_shift study: no task has a corrupted copy of its cases in test_on"
    against = "- blobs, dc(mean_logits) against ms(mean_logits): "
    for text in ("Results on blobs", "ms(mean_logits) ×", against, "summary.json", study):
        assert text in done.out
    stems = {path.stem for path in (tmp_path / "one" / "tables").iterdir()}
    assert {"table1_tasks", "table2_calibrators", "table3_offsets", "table4_results", "table8_blobs"} <= stems
    assert {"table5_offsets", "figure4_flips", "figure6_binning", "figure8_reliability"} <= stems
    assert all(path.read_text() == "precious" for path in mine.values())
    assert not list((tmp_path / "one").rglob(".segcal*"))
    for path in mine.values():
        path.unlink()
    parts = [tmp_path / "part1", tmp_path / "part0"]
    for number, part in zip((1, 0), parts, strict=True):
        made = run(*command, "-o", part, "--num-parts", 2, "--part-id", number, "--json")
        assert made.document == {"part": number, "of": 2, "cases": None, "output": str(part), "failed": {}}
        assert len(list((part / "units").rglob("*.jsonl"))) == 3  # of one repeat
        assert not (part / "summary.json").exists()
    assert run("merge", *parts, "-o", tmp_path / "merged", "--", *command).code == 0
    assert files_of(tmp_path / "merged") == files_of(tmp_path / "one")


def test_json_is_one_document_a_moved_protocol_finds_its_data_and_a_broken_case_is_named(folder, tmp_path, run):
    shutil.copytree(folder, tmp_path / "data")
    (tmp_path / "data" / "member_0" / "c4.npy").write_bytes(b"no array")
    moved = tmp_path / "elsewhere.toml"
    moved.write_text(PROTOCOL, encoding="utf-8")
    done = run("benchmark", moved, "-o", tmp_path / "out", "--root", tmp_path / "data", "--json")
    assert done.code == 3
    assert "1 case failed:\n  blobs/c4: " in done.err
    assert list(done.document["failed"]) == ["blobs/c4"]
    assert len(done.document["rows"]) == 3
    assert done.document["comparisons"][0]["second"] == "dc(mean_logits)"
    assert all(name.startswith(str(tmp_path / "out")) for name in done.document["tables"])


def test_mistakes_are_the_user_s_to_repair_and_files_of_others_stay(folder, tmp_path, run):
    call = ["benchmark", folder / "protocol.toml", "-o", tmp_path / "out"]
    assert "'0' is no count, but a whole number of at least 1 is needed" in run(*call, "--workers", 0).err
    assert "is missing, but a protocol is needed" in run("benchmark", tmp_path / "none.toml", *call[2:]).err
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "report.html").write_text("precious")
    assert "holds report.html, but no protocol.json that says that it is of" in run(*call).err
    with claim(tmp_path / "out"):
        assert "is being written to by another segcal" in run(*call).err
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["report.html"]


@pytest.fixture
def asked(monkeypatch):
    """Take the place of the demonstration and remember what it was asked for."""
    calls = []
    table = Table("Before and after", "", (Column("NLL"),), (Group("roads", (Row("ts", (Cell(0.25),)),)),))

    def tell(plan, folder, progress):
        calls.append((plan, folder))
        left, written = {"padding": "no mask"}, (folder / "tables",)
        return Story(table, ("roads: fine.",), plan.reduced, left, written, {"roads": "ts"})

    monkeypatch.setattr(benchmark, "tell_story", tell)
    return calls


@pytest.mark.parametrize("compiled", [True, False])
def test_a_demonstration_prints_the_table_the_verdict_what_was_reduced_and_where_files_are(
    run, asked, monkeypatch, compiled, tmp_path
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(benchmark, "was_compiled", lambda loop: compiled)
    done = run("demo", "--workers", "2")
    assert done.code == 0
    for text in ("0.250", "- roads: fine.", "Reduced, to take minutes (segcal demo --full runs everything):",
                 "no padding study: no mask", f"- {Path('demo-results') / 'tables'}"):  # fmt: skip
        assert text in done.out
    assert ("compiles what it counts with and keeps it" in done.out) is not compiled
    plan, folder = asked[0]
    assert (plan.protocol.workers, plan.protocol.repeats, folder) == (2, 1, Path("demo-results"))


def test_a_full_demonstration_reduces_nothing_and_json_is_one_document(run, asked, tmp_path):
    done = run("demo", "--full", "--out", tmp_path / "here", "--workers", "1")
    assert "Reduced" not in done.out
    assert (asked[0][0].protocol.repeats, asked[0][1]) == (3, tmp_path / "here")
    found = run("demo", "--json", "--out", tmp_path).document
    assert (found["verdict"], found["chosen"]) == (["roads: fine."], {"roads": "ts"})
    assert found["written"] == [str(tmp_path / "tables")]
    refused = run("demo", "--workers", "0")
    assert (refused.code, len(asked)) == (2, 2)
    assert "--workers is 0, but at least 1 is needed" in refused.err
