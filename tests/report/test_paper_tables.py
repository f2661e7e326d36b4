"""The paper's tables from results made by hand."""

import csv
import io

import pytest
from msgspec import convert

from segcal.report.paper_tables import make_tables, write_tables
from segcal.summary import Summary

METRICS = {
    "nll": "lower", "dice": "higher", "ece": "lower", "ba_ece": "lower", "ace": "lower", "flip_rate": "lower"
}  # fmt: skip


def estimate(value, spread=0.01):
    return {"value": value, "low": value - spread, "high": value + spread}


def result(task, pipeline, nll, dice, flip, test_on=""):
    numbers = {"nll": nll, "dice": dice, "ece": nll / 10, "ba_ece": nll / 5, "ace": nll / 4, "flip_rate": flip}
    metrics = {name: estimate(value) for name, value in numbers.items()}
    return {"task": task, "test_on": test_on, "pipeline": pipeline, "metrics": metrics, "converged": True}


def pipeline(calibrator, latex, invariant=True, preserves=None):
    return {
        "pooling": "mean_logits", "calibrator": calibrator, "latex": latex, "translation_invariant": invariant,
        "preserves": preserves, "pointwise": True,
    }  # fmt: skip


def tables_of(summary):
    return make_tables(convert(summary, Summary))


@pytest.fixture
def summary():
    task = {"members": 5, "background": True, "class_names": None, "voxels": [10, 10], "cal": [4, 4], "val": [2, 2]}
    return {
        "schema": 1,
        "hash": "h",
        "repeats": 2,
        "bootstrap": {"replicates": 10, "seed": 0, "level": 0.95},
        "fit": {},
        "notes": [],
        "metrics": {
            name: {"title": name, "unit": "", "better": better, "pooled": False} for name, better in METRICS.items()
        },
        "tasks": [
            {**task, "name": "roads", "num_classes": 2, "cases": 12, "test": [6, 5], "offsets": {"a": 1.0, "b": 3.0}},
            {**task, "name": "brain", "num_classes": 5, "cases": 20, "test": [14, 14], "offsets": {"a": 8.0}},
        ],
        "groups": [
            {"title": "(a) Baselines", "rows": ["identity(mean_logits)"]},
            {"title": "(b) MS", "rows": ["ms(mean_logits)", "cms_ap(mean_logits)"]},
        ],
        "pipelines": {
            "identity(mean_logits)": pipeline("identity", r"$\bar{z}$", preserves="order"),
            "ms(mean_logits)": pipeline("ms", r"MS($\bar{z}$)", invariant=False),
            "cms_ap(mean_logits)": pipeline("cms_ap", r"CMS$_\mathrm{ap}$($\bar{z}$)", preserves="argmax"),
        },
        "results": [
            result("roads", "identity(mean_logits)", 0.4, 0.8, 0.0),
            result("roads", "ms(mean_logits)", 0.3, 0.75, 0.025),
            result("roads", "cms_ap(mean_logits)", 0.36, 0.8, 0.0),
            result("brain", "identity(mean_logits)", 0.2, 0.9, 0.0),
            result("brain", "ms(mean_logits)", 0.1, 0.85, 0.01),
            result("roads", "ms(mean_logits)", 0.6, 0.5, 0.1, test_on="snow"),
        ],
        "comparisons": [],
    }  # fmt: skip


def test_table_1_counts_splits_and_shows_a_range_where_repeats_differ(summary):
    rows = tables_of(summary)["table1_tasks"].to_markdown().splitlines()
    assert "| roads | 2 | 5 | 4 | 2 | 5–6 | 12 |" in rows
    assert "| brain | 5 | 5 | 4 | 2 | 14 | 20 |" in rows


def test_table_2_has_the_papers_counts(summary):
    rows = tables_of(summary)["table2_calibrators"].to_markdown().splitlines()
    assert "| ms | × | × | 6/3 | 30/24 |" in rows
    assert "| cms_ap | ✓ | argmax | 10/4 | 130/100 |" in rows
    assert rows.index("| *Global calibrators* | | | | |") < rows.index("| ms | × | × | 6/3 | 30/24 |")


def test_table_3_has_mean_and_quartiles(summary):
    rows = tables_of(summary)["table3_offsets"].to_markdown().splitlines()
    assert "| roads | 2 | 2.00 [1.50, 2.00, 2.50] |" in rows


def test_table_4_has_tasks_side_by_side_the_best_in_bold_and_dashes(summary):
    rows = tables_of(summary)["table4_results"].to_markdown().splitlines()
    assert rows[2].startswith("| Pipeline | roads NLL ↓ | roads DSC ↑ | roads ECE ↓ | roads BA-ECE ↓ | roads ACE ↓ |")
    assert rows[5] == (
        "| identity(mean_logits) | 0.400 | **80.0** | 0.040 | 0.080 | 0.100 | — "
        "| 0.200 | **90.0** | 0.020 | 0.040 | 0.050 | — |"
    )
    assert rows[7] == (
        "| ms(mean_logits) × | **0.300** | 75.0 | **0.030** | **0.060** | **0.075** | **2.5** "
        "| **0.100** | 85.0 | **0.010** | **0.020** | **0.025** | **1.0** |"
    )
    assert rows[8] == "| cms_ap(mean_logits) | 0.360 | **80.0** | 0.036 | 0.072 | 0.090 | — | — | — | — | — | — | — |"


def test_table_8_has_intervals_for_one_task(summary):
    table = tables_of(summary)["table8_roads"]
    assert "| ms(mean_logits) × | **0.300 [0.290, 0.310]** | 75.0 [74.0, 76.0] |" in table.to_markdown()
    row = next(row for row in csv.DictReader(io.StringIO(table.to_csv())) if row["pipeline"] == "ms(mean_logits) ×")
    assert float(row["DSC low"]) == 0.74
    assert r"MS($\bar{z}$) [$\times$] & \textbf{0.300 [0.290, 0.310]}" in table.to_latex()
    assert "% interval of a bootstrap over groups of cases and repeats; ACE: min, max" in table.to_markdown()


def test_tests_elsewhere_have_a_table_of_their_own(summary):
    rows = tables_of(summary)["shift_roads"].to_markdown().splitlines()
    assert rows[0] == "**Fitted on roads, tested elsewhere**"
    assert "snow NLL" in rows[2]
    assert "0.600" in rows[5]
    assert not any(line.startswith("| identity") for line in rows)


def test_fits_that_did_not_converge_are_named(summary):
    summary["results"][1]["converged"] = False
    assert (
        "Not fitted to their tolerance in some repeat: ms(mean_logits)." in tables_of(summary)["table4_results"].notes
    )


def test_columns_of_metrics_that_were_not_asked_for_are_left_out(summary):
    del summary["metrics"]["ba_ece"]
    assert "BA-ECE" not in tables_of(summary)["table4_results"].to_markdown()


def test_all_tables_are_written_from_the_summary_alone(summary, tmp_path):
    names = {path.name for path in write_tables(convert(summary, Summary), tmp_path)}
    assert {path.name for path in (tmp_path / "tables").iterdir()} == names
    stems = ("table1_tasks", "table2_calibrators", "table3_offsets", "table4_results")
    assert names == {
        f"{stem}.{suffix}"
        for stem in (*stems, "table8_roads", "table8_brain", "shift_roads")
        for suffix in ("md", "csv", "tex")
    }


def test_compared_pipelines_have_a_table_of_paired_differences(summary):
    assert "comparisons" not in tables_of(summary)
    gap = {"value": -0.1, "low": -0.2, "high": -0.05, "cases": 9, "undefined": 0, "better": 8, "equal": 0, "worse": 1}
    few = gap | {"value": 0.02, "low": None, "high": None}
    metrics = {
        "nll": {"verdict": "better", "difference": gap, "of": "cases"},
        "dice": {"verdict": "not defined", "difference": few, "of": "cases"},
    }
    pair = {"first": "ms(mean_logits)", "second": "cms_ap(mean_logits)", "metrics": metrics, "sentence": "."}
    summary["comparisons"] = [
        {"task": "roads", "test_on": "", "about": "asked for", **pair},
        {"task": "roads", "test_on": "snow", "about": "asked for", **pair},
    ]
    text = tables_of(summary)["comparisons"].to_markdown()
    assert "roads: asked for" in text
    assert "roads tested on snow: asked for" in text
    row = "| cms_ap(mean_logits) - ms(mean_logits) | -0.100 [-0.200, -0.050] | 2.0 |"
    assert text.count(row) == 2, text
