"""The board: every row has the schema, the pages are made of the rows, and a browser filters and sorts them."""

import importlib.util
import json
import re
import shutil
from decimal import Decimal
from pathlib import Path

import pytest

from paper import summaries
from paper.board import (
    FOLDER,
    STUDIES,
    Row,
    check,
    read_rows,
    read_studies,
    rows_of_markdown,
    rows_of_table,
    write_rows,
)
from segcal.errors import InputError
from segcal.report.table import Cell, Column, Group, Table
from segcal.report.table import Row as Line

DOCS = Path(__file__).parents[1] / "docs"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
PATIENCE = 90_000  # milliseconds; a machine may be busy


def load(path):
    """Return a script as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


site = load(DOCS / "site" / "board.py")


def test_every_study_has_rows_of_the_schema_and_an_interval_holds_its_value():
    counts = check()
    assert all(counts.values())
    for study in read_studies():
        rows = read_rows(study.name)
        assert len({(row.task, row.method, row.metric) for row in rows}) == len(rows)  # nothing is said twice
        assert all(row.low <= row.high for row in rows if row.low is not None)
    rows = read_rows("table4")
    assert all(row.low <= row.value <= row.high for row in rows if row.low is not None)


def test_rows_are_read_as_they_were_written_to_the_last_digit(tmp_path):
    rows = [
        Row("a, b", 'c "d"', "NLL", Decimal("0.060"), Decimal("-0.010"), Decimal("0.10"), cases=3),
        Row("", "m", "fit", note="not fitted"),
    ]
    write_rows("one", rows, tmp_path)
    assert read_rows("one", tmp_path) == rows
    assert str(read_rows("one", tmp_path)[0].value) == "0.060"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("a,m,NLL,high,,,,,", "value"),
        ("a,m,NLL,,,,,,", "a row without a note needs one"),
        ("a,m,NLL,0.1,0.0,,,,", "an interval has a value and two ends"),
        ("a,,NLL,0.1,,,,,", "length >= 1"),
        ("a,m,NLL,0.1,,,1.5,,", "cases"),
    ],
)
def test_a_row_that_the_schema_does_not_know_is_refused_with_its_line(tmp_path, line, message):
    (tmp_path / "one.csv").write_text(f"{','.join(Row.__struct_fields__)}\n{line}\n")
    with pytest.raises(InputError, match=rf"one\.csv, line 2, is no row .*{message}"):
        read_rows("one", tmp_path)


def test_a_file_without_a_study_and_other_columns_are_refused(tmp_path):
    shutil.copy(FOLDER / "gpu_fits.csv", tmp_path)
    (tmp_path / STUDIES).write_text("[]")
    with pytest.raises(InputError, match=r"has \['gpu_fits'\] once, but a study is a file and an entry"):
        check(tmp_path)
    (tmp_path / "gpu_fits.csv").write_text("task,value\n")
    with pytest.raises(InputError, match=r"has the columns \['task', 'value'\], but"):
        read_rows("gpu_fits", tmp_path)


TEXT = """Words.

| Pipeline | NLL ↓ | Flip |
|---|---:|---:|
| *roads* | | |
| `ts` | **0.250 [0.200, 0.300]** | — |
| ms | 1,234 [1, 2, 3] | 0.5 % (0.4) |
| slow | stopped | ~12.50 |
"""


def test_tables_become_rows():
    rows = list(rows_of_markdown(TEXT))
    assert rows == [
        Row("roads", "ts", "NLL", Decimal("0.250"), Decimal("0.200"), Decimal("0.300")),
        Row("roads", "ms", "NLL", Decimal(1234), Decimal(1), Decimal(3), note="median 2"),
        Row("roads", "ms", "Flip, %", Decimal("0.5"), note="(0.4)"),
        Row("roads", "slow", "NLL", note="stopped"),
        Row("roads", "slow", "Flip", Decimal("12.50"), note="about"),
    ]
    lines = (Line("ts", (Cell(0.25, 0.2, 0.3), Cell(None))), Line("ms", (Cell(0.5), Cell("few"))))
    table = Table("t", "Pipeline", (Column("NLL", digits=2), Column("DSC", scale=100)), (Group("g", lines),))
    assert list(rows_of_table(table, "roads")) == [
        Row("roads", "ts", "NLL", Decimal("0.25"), Decimal("0.20"), Decimal("0.30")),
        Row("roads", "ms", "NLL", Decimal("0.50")),
        Row("roads", "ms", "DSC, %", note="few"),
    ]
    assert [row.task for row in rows_of_table(table)] == ["g"] * 3
    assert [row.method for row in rows_of_table(table, named=True)] == ["g, ts", "g, ms", "g, ms"]


def test_the_page_of_the_board_and_the_summaries_are_made_of_the_rows():
    assert (DOCS / "board.md").read_text("utf-8") == site.page(), "run: make listings"
    used = set()
    for path in sorted(DOCS.glob("*.md")):
        text = path.read_text("utf-8")
        used |= set(re.findall(r"<!-- board: (\w+) -->", text))
        assert summaries.renewed(text) == text, "run: make listings"
    assert used == set(summaries.TABLES)


def test_summaries_show_the_lowest_as_it_is():
    found = {("t", "a", "NLL"): Decimal("0.2"), ("t", "b", "NLL"): Decimal("0.1"), ("t", "c", "NLL"): Decimal("0.10")}
    rows = {key: Row(*key, value) for key, value in found.items()}
    assert summaries.lowest(rows, "t", "NLL") == "`b`, `c` 0.1"
    assert summaries.lowest(rows, "t", "ECE") == "—"


@pytest.fixture(scope="module")
def browser():
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    program = next((path for path in map(shutil.which, BROWSERS) if path), None)
    if program is None:
        pytest.skip(f"no browser: none of {', '.join(BROWSERS)} is on the path")
    with sync_api.sync_playwright() as started:
        try:
            found = started.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-dev-shm-usage"])
        except sync_api.Error as error:
            pytest.skip(f"the browser does not start here: {str(error).splitlines()[0]}")
        yield found
        found.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The board as a folder without a server, as the site has it."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "board").mkdir()
    shutil.copy(DOCS / "board" / "board.js", folder / "board")
    (folder / site.ROWS).write_text(site.script(), "utf-8")
    html = "\n".join(re.findall(r"^<.*>$", (DOCS / "board.md").read_text("utf-8"), flags=re.MULTILINE))
    (folder / "board.html").write_text(f"<!doctype html><html lang=en><meta charset=utf-8>{html}", "utf-8")
    return folder


@pytest.fixture
def opened(browser, folder):
    """Return what opens the board at an address, and all that the pages said or asked for."""
    pages, said = [], []

    def open_page(address="", width=1280):
        page = browser.new_page(viewport={"width": width, "height": 900})
        pages.append(page)
        page.set_default_timeout(PATIENCE)
        page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: said.append(f"error: {error}"))
        page.on("request", lambda request: said.append(request.url) if request.url.startswith("http") else None)
        page.goto((folder / "board.html").as_uri() + address)
        page.wait_for_selector("#board[data-ready]")
        return page

    yield open_page
    assert said == []
    for page in pages:
        page.close()


def column(page, title):
    heads = page.eval_on_selector_all("#board thead button", "all => all.map(one => one.textContent.split(' ')[0])")
    return page.eval_on_selector_all(
        f"#board tbody td:nth-child({heads.index(title) + 1})", "all => all.map(one => one.textContent)"
    )


def test_an_address_chooses_a_study_and_filters(opened):
    page = opened("#gpu_fits")
    rows = read_rows("gpu_fits")
    assert column(page, "Value") == [str(row.value) for row in rows]
    assert page.inner_text("#board [role=status]").startswith(f"{len(rows)} of ")
    assert page.inner_text("#board caption") == "Fits on a GPU"
    assert page.get_attribute(".board-about a", "href") == "board/gpu_fits.csv"
    page = opened("#table4?task=roads&metric=ECE")
    assert set(column(page, "Metric")) == {"ECE"}
    assert len(column(page, "Method")) == 25


def test_filters_narrow_the_rows_and_stay_in_the_address(opened):
    page = opened("#table4")
    page.select_option("select[name=task]", "camvid")
    page.select_option("select[name=metric]", "NLL")
    page.fill("input[name=search]", "conic probs")
    assert column(page, "Method") == ["conic(mean_probs)", "conic_class(mean_probs)"]
    assert page.url.endswith("#table4?task=camvid&metric=NLL&search=conic+probs")
    page.click("text=Clear filters")
    page.select_option("select[name=study]", "")
    total = sum(len(read_rows(study.name)) for study in read_studies())
    assert page.inner_text("#board [role=status]") == f"{total:,} of {total:,} rows, the first 100 shown"
    page.click("text=Show 100 more")
    assert page.locator("#board tbody tr").count() == 200
    page.fill("input[name=search]", "no such row")
    assert page.inner_text("#board [role=status]").startswith("0 of ")


def test_a_column_sorts_by_number_in_both_directions_with_the_keyboard(opened):
    page = opened("#fitting")
    value = page.locator("#board thead button", has_text="Value")
    value.focus()
    page.keyboard.press("Enter")
    numbers = [float(text) for text in column(page, "Value") if text]
    assert numbers == sorted(numbers)
    assert numbers[0] < 0
    assert page.get_attribute("#board th:has(button:text('Value'))", "aria-sort") == "ascending"
    page.keyboard.press("Enter")  # the button keeps the focus
    numbers = [float(text) for text in column(page, "Value")]
    assert numbers == sorted(numbers, reverse=True)
    assert page.get_attribute("#board th:has(button:text('Value'))", "aria-sort") == "descending"


@pytest.mark.parametrize("width", [1280, 390])
def test_a_wide_table_scrolls_in_its_place(opened, width):
    style = (DOCS / "site.css").read_text("utf-8")
    page = opened("#matched", width)
    page.add_style_tag(content=style)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.get_attribute(".board-scroll", "tabindex") == "0"
    labels = page.eval_on_selector_all("#board select, #board input", "all => all.map(one => one.labels.length)")
    assert labels == [1] * 4


def test_the_script_cannot_end_early_by_what_a_row_says(tmp_path):
    study = {"name": "one", "title": "</script>", "about": "a", "interval": "none", "code": "c", "command": "d"}
    (tmp_path / STUDIES).write_text(json.dumps([study]))
    write_rows("one", [Row("t", "m", "</script>", Decimal(1))], tmp_path)
    text = site.script(tmp_path)
    assert "</script>" not in text
    assert json.loads(text.removeprefix("window.segcalBoard = ").rstrip(";\n"))["rows"] == [
        [0, "t", "m", "</script>", "1", "", "", "", "", ""]
    ]
