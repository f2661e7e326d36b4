"""``segcal benchmark`` from a file to tables."""

import argparse
import json
import shutil

import numpy as np
import pytest

from segcal.cli import benchmark, main
from segcal.cli.benchmark import run
from segcal.errors import InputError
from segcal.target import claim

PROTOCOL = """
repeats = 2
metrics = ["nll", "dice", "ece", "ba_ece", "ace", "flip_rate", "free_energy_std"]
pipelines = [
  {pooling = "mean_logits", calibrator = "identity"},
  {pooling = "mean_logits", calibrator = "ms"},
  {pooling = "mean_logits", calibrator = "dc"},
]

[split]
cal = 3
val = 2

[fit]
lam = 1e-3
mu = 1e-3

[bootstrap]
replicates = 50

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


def arguments(*words):

    parser = argparse.ArgumentParser()
    benchmark.declare(parser)
    return parser.parse_args([*map(str, words)])


def test_it_ends_with_tables_comparisons_and_paths(folder, tmp_path, capsys):
    assert run(arguments(folder / "protocol.toml", "-o", tmp_path / "out")) == 0
    text = capsys.readouterr().out
    assert "Results on blobs" in text
    assert "ms(mean_logits) ×" in text
    assert "- blobs, dc(mean_logits) against ms(mean_logits): " in text
    assert "summary.json" in text
    stems = {path.stem for path in (tmp_path / "out" / "tables").iterdir()}
    assert {"table1_tasks", "table2_calibrators", "table3_offsets", "table4_results", "table8_blobs"} <= stems
    assert {"table5_offsets", "figure4_flips", "figure6_binning", "figure8_reliability"} <= stems
    assert "no covariate_shift study: no task has a corrupted copy of its cases in test_on" in text


def test_a_broken_case_is_named_at_the_end_and_the_others_are_done(folder, tmp_path, capsys):
    shutil.copytree(folder, tmp_path / "data")
    (tmp_path / "data" / "member_0" / "c4.npy").write_bytes(b"no array")
    words = (tmp_path / "data" / "protocol.toml", "-o", tmp_path / "out", "--json")
    assert run(arguments(*words)) == 3
    captured = capsys.readouterr()
    assert "1 case failed:\n  blobs/c4: " in captured.err
    document = json.loads(captured.out)
    assert list(document["failed"]) == ["blobs/c4"]
    assert len(document["rows"]) == 3


def test_json_is_one_document_and_a_moved_protocol_finds_its_data(folder, tmp_path, capsys):
    moved = tmp_path / "elsewhere.toml"
    moved.write_text(PROTOCOL, encoding="utf-8")
    assert run(arguments(moved, "-o", tmp_path / "out", "--root", folder, "--json")) == 0
    document = json.loads(capsys.readouterr().out)
    assert len(document["rows"]) == 3
    assert document["comparisons"][0]["second"] == "dc(mean_logits)"
    assert all(name.startswith(str(tmp_path / "out")) for name in document["tables"])


def test_mistakes_are_the_user_s_to_repair(folder, tmp_path, capsys):
    with pytest.raises(SystemExit):
        arguments(folder / "protocol.toml", "-o", tmp_path, "--workers", 0)
    assert "'0' is no count, but a whole number of at least 1 is needed" in capsys.readouterr().err
    with pytest.raises(InputError, match="is missing, but a protocol is needed"):
        run(arguments(tmp_path / "none.toml", "-o", tmp_path))


def test_files_of_the_user_stay_where_they_are(folder, tmp_path):
    mine = {name: tmp_path / "out" / name for name in (".cache/x", ".git/config", "notes.part", "calibrators.txt")}
    for path in mine.values():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("precious")
    assert run(arguments(folder / "protocol.toml", "-o", tmp_path / "out")) == 0
    assert all(path.read_text() == "precious" for path in mine.values())
    assert not list((tmp_path / "out").rglob(".segcal*"))


def test_neither_files_of_others_nor_two_at_once(folder, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "report.html").write_text("precious")
    with pytest.raises(InputError, match=r"holds report\.html, but no protocol\.json that says that it is of"):
        run(arguments(folder / "protocol.toml", "-o", tmp_path / "out"))
    with claim(tmp_path / "out"), pytest.raises(InputError, match="is being written to by another segcal"):
        run(arguments(folder / "protocol.toml", "-o", tmp_path / "out"))
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["report.html"]


def test_parts_of_its_jobs_give_the_bytes_of_one_process(folder, tmp_path, files_of, capsys):
    def call(*words):
        with pytest.raises(SystemExit) as stopped:
            main([*map(str, words)])
        assert stopped.value.code == 0, capsys.readouterr().err

    command = ["benchmark", folder / "protocol.toml"]
    call(*command, "-o", tmp_path / "one")
    parts = [tmp_path / "part1", tmp_path / "part0"]
    for number, part in zip((1, 0), parts, strict=True):
        call(*command, "-o", part, "--num-parts", 2, "--part-id", number)
        assert len(list((part / "units").rglob("*.jsonl"))) == 3  # of one repeat
        assert not (part / "summary.json").exists()
    call("merge", *parts, "-o", tmp_path / "merged", "--", *command)
    assert files_of(tmp_path / "merged") == files_of(tmp_path / "one")
