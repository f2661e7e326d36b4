"""What a study writes: one JSON document and its tables."""

import json

import pytest
from msgspec import Struct

from segcal.report.table import Cell, Column, Group, Row, Table
from segcal.studies.study import Outcome, Study, interval_cell
from segcal.summary import Interval


class Toy(Struct):
    numbers: list[float | None]


STUDY = Study("a toy", "", "nothing", True, lambda setting: Outcome(Toy([]), {}), Toy)


def test_data_and_tables_are_written_and_nothing_else_is_left(tmp_path):
    table = Table("A", "B", (Column("C"),), (Group("", (Row("d", (Cell(0.5),)),)),))
    paths = Outcome(Toy([1, None]), {"stem": table}).write(tmp_path, "toy", "abc")
    tables = ["stem.md", "stem.csv", "stem.tex"]
    header = {"schema": 1, "study": "toy", "digest": "abc", "tables": tables}
    assert json.loads(paths[0].read_text()) == header | {"numbers": [1, None]}
    found = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert found == ["studies/toy.json", "tables/stem.csv", "tables/stem.md", "tables/stem.tex"]
    assert "0.500" in (tmp_path / "tables" / "stem.md").read_text()


def test_it_is_read_back_only_whole_and_with_its_digest(tmp_path):
    table = Table("A", "B", (Column("C"),), (Group("", (Row("d", (Cell(0.5),)),)),))
    assert STUDY.read(tmp_path, "toy", "abc") is None
    paths = Outcome(Toy([1, None]), {"stem": table}).write(tmp_path, "toy", "abc")
    assert STUDY.read(tmp_path, "toy", "abc") == Outcome(Toy([1, None]), {})
    assert STUDY.read(tmp_path, "toy", "abd") is None
    paths[1].unlink()
    assert STUDY.read(tmp_path, "toy", "abc") is None
    paths[0].write_text("{}")
    assert STUDY.read(tmp_path, "toy", "abc") is None
    paths[0].write_text("[")
    assert STUDY.read(tmp_path, "toy", "abc") is None


def test_what_json_does_not_have_is_refused(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        Outcome(Toy([float("nan")]), {}).write(tmp_path, "toy")


def test_an_interval_of_no_width_is_not_shown():
    assert interval_cell(Interval(0.2, 0.1, 0.3)) == Cell(0.2, 0.1, 0.3)
    assert interval_cell(Interval(0.2, 0.2, 0.2)) == Cell(0.2)
    assert interval_cell(Interval(None, None, None)) == Cell(None)
    assert interval_cell(None) == Cell(None)
