"""The rows of conic scaling: made from a folder of results, and from what was found once."""

import sys
from functools import partial

import pytest
from msgspec.structs import replace

from paper import conic_rows
from paper.board import read_rows
from paper.learned_rows import learned
from segcal.benchmark.protocol import parse_protocol
from segcal.demo.embedded import open_embedded
from segcal.studies.run import run


def test_rows_are_paired_differences_all_pipelines_and_what_was_learned(tmp_path, monkeypatch):
    names = ("ts", "cms_ap", "conic", "conic_class")
    document = {
        "tasks": [{"name": "roads", "embedded": "roads", "cases": 7, "members": 2, "split": {"cal": 3, "val": 1}}],
        "pipelines": [{"pooling": "mean_logits", "calibrator": name} for name in names],
        "fit": {"lam": 1e-3, "mu": 1e-3, "voxels": 500},
        "bootstrap": {"replicates": 20},
        "studies": [],
        "repeats": 2,
    }
    opener = partial(open_embedded, cache=tmp_path / "cache")
    run(replace(parse_protocol(document), embedded=opener), tmp_path / "results")
    board = tmp_path / "board"
    monkeypatch.setattr(sys, "argv", ["conic_rows", str(tmp_path / "results"), "-o", str(board)])
    conic_rows.main()
    rows = {(row.method, row.metric): row for row in read_rows("conic", board)}
    for second, first in (("conic", "ts"), ("conic", "cms_ap"), ("conic_class", "conic")):
        for metric in ("NLL", "ECE", "BA-ECE", "ACE"):
            gap = rows[f"{second}(mean_logits) against {first}(mean_logits)", metric]
            assert gap.low <= gap.value <= gap.high
            ends = [rows[f"{name}(mean_logits)", metric].value for name in (second, first)]
            assert float(gap.value) == pytest.approx(float(ends[0] - ends[1]), abs=1.6e-4)
    assert rows["conic(mean_logits)", "KKT residual"].value < 1e-3
    assert (tmp_path / "images" / "conic_roads.svg").read_text("utf-8").startswith("<?xml")


def test_what_was_found_once_becomes_rows():
    found = conic_rows.FOUND
    few = list(conic_rows.few(found / "learned.json"))
    assert ("camvid, 5 calibration cases", "conic against ts", "NLL") in {(r.task, r.method, r.metric) for r in few}
    kept = {(r.task, r.method, r.metric): r.value for r in read_rows("conic_corrupted") if r.cases == 16}
    made = {
        (r.task, r.method, r.metric): r.value for r in conic_rows.corrupted(found / "conic_shift.json") if r.cases == 16
    }
    assert kept
    assert made == kept  # means, which no change of the intervals touches
    kept, made = (
        {(r.task, r.method, r.metric): r.value for r in rows}
        for rows in (read_rows("learned"), learned(found / "learned.json"))
    )
    assert made == kept
