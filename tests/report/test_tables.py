"""The table type against what it must print, written by hand, and the paper's tables from results made by hand."""

import csv
import io

import numpy as np
import pytest
from msgspec import convert
from rich.console import Console

from segcal.errors import InputError
from segcal.report.paper_tables import make_tables, write_tables
from segcal.report.table import Cell, Column, Group, Row, Table, quartiles
from segcal.summary import Summary

COLUMNS = (
    Column("NLL", "Roads", digits=3, better="lower"),
    Column("DSC", "Roads", digits=1, scale=100, better="higher"),
    Column("Flip", "Streets", digits=1, scale=100),
)


@pytest.fixture
def table() -> Table:
    first = Row("p0", (Cell(0.5, 0.4, 0.6), Cell(0.712), Cell(None)))
    second = Row("ts(mean_probs)", (Cell(0.30001), Cell(0.7121), Cell(0.0)), latex=r"TS($\bar p$)")
    third = Row("ms [×]", (Cell(0.29999), Cell(0.6, 0.5, 0.7), Cell(0.05)))
    groups = (Group("(a) Baselines", (first,)), Group("(b) Others", (second, third)))
    return Table("Main results", "Pipeline", COLUMNS, groups, notes=("DSC & Flip in %.",))


def test_markdown_is_what_a_hand_would_write(table):
    assert table.to_markdown().splitlines() == [
        "**Main results**",
        "",
        "| Pipeline | Roads NLL ↓ | Roads DSC ↑ | Streets Flip |",
        "|---|---:|---:|---:|",
        "| *(a) Baselines* | | | |",
        "| p0 | 0.500 [0.400, 0.600] | **71.2** | — |",
        "| *(b) Others* | | | |",
        "| ts(mean_probs) | **0.300** | **71.2** | 0.0 |",
        "| ms [×] | **0.300** | 60.0 [50.0, 70.0] | 5.0 |",
        "",
        "DSC & Flip in %.",
    ]


def test_a_file_that_is_no_such_table_is_not_replaced(table, tmp_path):
    written = table.write(tmp_path, "main")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["main.csv", "main.md", "main.tex"]
    assert written[0].read_text("utf-8") == table.to_markdown()
    assert [path.name for path in table.write(tmp_path, "main")] == ["main.md", "main.csv", "main.tex"]
    for path in written:
        own = path.read_text()
        path.write_text("what the user knows\n")
        with pytest.raises(InputError, match=r"main\.\w+ exists and was not written by this command"):
            table.write(tmp_path, "main")
        assert path.read_text() == "what the user knows\n"
        table.write(tmp_path, "main", overwrite=True)
        assert path.read_text() == own


def test_csv_has_all_digits_and_ends_of_intervals_apart(table):
    rows = list(csv.DictReader(io.StringIO(table.to_csv())))
    assert [row["Roads NLL"] for row in rows] == ["0.5", "0.30001", "0.29999"]
    assert [row["Roads NLL low"] for row in rows] == ["0.4", "", ""]
    assert rows[2]["Roads DSC high"] == "0.7"
    assert "Streets Flip low" not in rows[0]
    assert rows[0]["Streets Flip"] == ""
    assert rows[1]["group"] == "(b) Others"


def test_latex_escapes_text_and_keeps_given_titles(table):
    text = table.to_latex()
    assert r"p0 & 0.500 [0.400, 0.600] & \textbf{71.2} & --- \\" in text
    assert r"TS($\bar p$) & \textbf{0.300} & \textbf{71.2} & 0.0 \\" in text
    assert r"ms [$\times$] & " in text
    assert r" & \multicolumn{2}{c}{Roads} & \multicolumn{1}{c}{Streets} \\" in text
    assert r"\multicolumn{4}{l}{\textit{(b) Others}} \\" in text
    assert r"\caption{Main results. DSC \& Flip in \%.}" in text
    assert text.count(r"\begin{") == text.count(r"\end{")


def test_groups_that_are_apart_have_each_its_own_best():
    groups = tuple(
        Group(task, (Row("a", (Cell(first),)), Row("b", (Cell(second),))))
        for task, first, second in (("roads", 0.1, 0.2), ("streets", 0.6, 0.5))
    )
    columns = (Column("NLL", better="lower"),)
    together = Table("t", "x", columns, groups).to_markdown()
    assert [line for line in together.splitlines() if "**0" in line] == ["| a | **0.100** |"]
    apart = Table("t", "x", columns, groups, apart=True).to_markdown()
    assert [line for line in apart.splitlines() if "**0" in line] == ["| a | **0.100** |", "| b | **0.500** |"]


def test_a_terminal_shows_intervals_and_brackets(table):
    console = Console(width=140, record=True, file=io.StringIO())
    console.print(table)
    shown = console.export_text()
    assert "0.500 [0.400, 0.600]" in shown
    assert "ms [×]" in shown


def test_quartiles_agree_with_numpy(rng):
    values = rng.normal(size=37)
    cell = quartiles([None, *values])
    expected = [values.mean(), *np.percentile(values, (25, 50, 75))]
    assert np.allclose([cell.value, cell.low, cell.middle, cell.high], expected)
    assert quartiles([None]).value is None


def test_cells_are_shown_as_they_are():
    assert Cell("6/3").text(Column("x")) == "6/3"
    assert Cell(None).text(Column("x")) == "—"
    assert Cell(-0.0001).text(Column("d", digits=2)) == "0.00"
    assert Cell(0.5, 0.25, 0.75).text(Column("x", digits=1, scale=100)) == "50.0 [25.0, 75.0]"
    assert Cell(4.25, 1.75, 5.5, 3.0).text(Column("", digits=2)) == "4.25 [1.75, 3.00, 5.50]"


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


def test_tables_1_to_3_have_splits_the_papers_counts_and_quartiles(summary):
    rows = tables_of(summary)["table1_tasks"].to_markdown().splitlines()
    assert "| roads | 2 | 5 | 4 | 2 | 5–6 | 12 |" in rows
    assert "| brain | 5 | 5 | 4 | 2 | 14 | 20 |" in rows
    rows = tables_of(summary)["table2_calibrators"].to_markdown().splitlines()
    assert "| ms | × | × | 6/3 | 30/24 |" in rows
    assert "| cms_ap | ✓ | argmax | 10/4 | 130/100 |" in rows
    assert rows.index("| *Global calibrators* | | | | |") < rows.index("| ms | × | × | 6/3 | 30/24 |")
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


def test_fits_that_did_not_converge_are_named_and_metrics_that_were_not_asked_for_left_out(summary):
    summary["results"][1]["converged"] = False
    del summary["metrics"]["ba_ece"]
    table = tables_of(summary)["table4_results"]
    assert "Not fitted to their tolerance in some repeat: ms(mean_logits)." in table.notes
    assert "BA-ECE" not in table.to_markdown()


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
