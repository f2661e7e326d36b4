"""The table type against what it must print, written by hand."""

import csv
import io

import numpy as np
import pytest
from rich.console import Console

from segcal.errors import InputError
from segcal.report.table import Cell, Column, Group, Row, Table, quartiles

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


def test_a_value_out_of_contention_is_shown_but_not_best():
    rows = (Row("a", (Cell(0.1, contends=False),)), Row("b", (Cell(0.2),)))
    table = Table("t", "x", (Column("NLL", better="lower"),), (Group("", rows),))
    assert "| a | 0.100 |" in table.to_markdown()
    assert "| b | **0.200** |" in table.to_markdown()


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


def test_all_three_files_are_written_and_nothing_else(table, tmp_path):
    paths = table.write(tmp_path / "tables", "table_4")
    assert [path.name for path in paths] == ["table_4.md", "table_4.csv", "table_4.tex"]
    assert sorted(path.name for path in (tmp_path / "tables").iterdir()) == sorted(path.name for path in paths)
    assert paths[0].read_text("utf-8") == table.to_markdown()


def test_a_terminal_shows_intervals_and_brackets(table):
    console = Console(width=140, record=True, file=io.StringIO())
    console.print(table)
    shown = console.export_text()
    assert "0.500 [0.400, 0.600]" in shown
    assert "ms [×]" in shown


def test_minus_zero_is_zero():
    assert Cell(-0.0001).text(Column("d", digits=2)) == "0.00"


def test_quartiles_are_those_of_numpy():
    cell = quartiles([4.0, 1.0, None, 2.0, 10.0])
    assert (cell.value, cell.low, cell.middle, cell.high) == (4.25, 1.75, 3.0, 5.5)
    assert quartiles([None]).value is None
    assert cell.text(Column("", digits=2)) == "4.25 [1.75, 3.00, 5.50]"


def test_quartiles_of_many_numbers_agree_with_numpy():
    values = np.random.default_rng(0).normal(size=37)
    cell = quartiles(list(values))
    assert np.allclose(
        [cell.value, cell.low, cell.middle, cell.high], [values.mean(), *np.percentile(values, (25, 50, 75))]
    )


def test_texts_and_unknown_values_are_shown_as_they_are():
    assert Cell("6/3").text(Column("x")) == "6/3"
    assert Cell(None).text(Column("x")) == "—"
    assert Cell(0.5, 0.25, 0.75).text(Column("x", digits=1, scale=100)) == "50.0 [25.0, 75.0]"
