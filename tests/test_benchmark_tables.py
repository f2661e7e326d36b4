"""Tables of the benchmarks go where they belong, with what made them; `make tables` runs the scripts themselves."""

import importlib.util
import json
import re

import pytest

from benchmarks import tables
from benchmarks.tables import PAGE, SECTIONS, Section, make_tables, put, stamp
from paper.board import STUDIES, read_rows, read_studies

TEXT = "a\n<!-- made: one -->\nold\n<!-- end -->\nb\n<!-- made: two -->\nkept\n<!-- end -->\n"


def test_every_table_has_one_place_on_the_page_and_a_script():
    page = PAGE.read_text("utf-8")
    assert re.findall(r"<!-- made: (\w+) -->", page) == re.findall(r"<!-- made: (\w+) -->\n\*.*\*\n\n", page)
    own = [name for name, section in SECTIONS.items() if not section.writes and not section.board]
    assert sorted(re.findall(r"<!-- made: (\w+) -->", page)) == sorted(own)
    assert page.count("<!-- end -->") == len(own)
    assert all(importlib.util.find_spec(section.command[0]) for section in SECTIONS.values())
    studies = {study.name: study.command for study in read_studies()}
    for name in (name for name, section in SECTIONS.items() if section.board):
        assert studies[name] == " ".join(("python -m", *SECTIONS[name].command))


def test_a_table_is_put_in_its_place_alone():
    assert put(TEXT, "one", "new\n") == TEXT.replace("old", "new")
    assert put(TEXT, "two", r"\1 stays as it is\n") == TEXT.replace("kept\n", r"\1 stays as it is\n")
    with pytest.raises(ValueError, match="the page has no place for three, but one is needed"):
        put(TEXT, "three", "new")


def test_a_stamp_has_no_path_of_this_machine():
    words = stamp(Section(("benchmarks.fit", "ROOT/predictions", "ROOT")), "2026-01-02")
    assert re.fullmatch(
        r"segcal \S+ \(sources [0-9a-f]{10}\), 2026-01-02, \d+ cores: `python -m benchmarks.fit ROOT/predictions ROOT`",
        words,
    )


@pytest.fixture
def scripts(tmp_path, monkeypatch):
    (tmp_path / "says.py").write_text("import sys; print('| made of |', *sys.argv[1:])")
    (tmp_path / "fails.py").write_text("raise SystemExit(1)")
    monkeypatch.setattr(tables, "ROOT", tmp_path)
    sections = {
        "one": Section(("says", "ROOT/x")),
        "two": Section(("fails",)),
        "three": Section(("says",), needs=("no_such_library",)),
        "four": Section(("says", "4"), fenced=True),
    }
    monkeypatch.setattr(tables, "SECTIONS", sections)
    page = tmp_path / "page.md"
    page.write_text(TEXT + "<!-- made: four -->\n<!-- end -->\n")
    return page


def test_what_can_be_made_is_made_and_the_rest_keeps_what_it_has(scripts, tmp_path):
    said = []
    assert make_tables(list(tables.SECTIONS), tmp_path, scripts, said.append) == ["two"]
    text = scripts.read_text()
    assert f"| made of | {tmp_path}/x\n\n<!-- end -->" in text
    assert "```text\n| made of | 4\n```\n\n<!-- end -->" in text
    assert "\nkept\n<!-- end -->" in text
    assert said[0] == "one: made"
    assert said[1].startswith("two: left as it is (Command")
    assert said[2] == "three: left as it is (no_such_library not installed)"


def test_without_data_a_table_of_real_ensembles_is_left(scripts):
    said = []
    assert make_tables(["one"], None, scripts, said.append) == []
    assert said == ["one: left as it is (no --data)"]
    assert "\nold\n" in scripts.read_text()


def test_a_large_table_is_rows_of_the_board_with_the_code_that_made_them(scripts, tmp_path, monkeypatch):
    (tmp_path / "prints.py").write_text(
        "print('Speed\\n\\n| 4 x 6 | ms | slower |\\n| --- | ---: | ---: |\\n| ours | 7 | 1.0 x |')"
    )
    monkeypatch.setitem(tables.SECTIONS, "speed", Section(("prints",), board=True))
    study = {"name": "speed", "title": "t", "about": "a", "interval": "none", "code": "old", "command": "c"}
    (tmp_path / STUDIES).write_text(json.dumps([study]))
    before = scripts.read_text()
    assert make_tables(["speed"], None, scripts, board=tmp_path) == []
    assert scripts.read_text() == before
    ms, slower = read_rows("speed", tmp_path)
    assert (ms.task, ms.method, ms.metric, str(ms.value)) == ("4 x 6", "ours", "ms", "7")
    assert (slower.metric, str(slower.value)) == ("slower, x", "1.0")
    assert read_studies(tmp_path)[0].code == tables.code()
