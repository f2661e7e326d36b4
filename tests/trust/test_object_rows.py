"""What is written and printed of objects."""

import csv
import json

import pytest

from segcal.trust.object_rows import CSV_SIGNATURE, JSON_SIGNATURE, ObjectCaseRow, ObjectRow, Objects, write_objects


def row(case, number, p, listed=True, voxels=7):
    place = ([1.0, 2.5], [0, 1, 3, 5], [1.0, 2.0, 3.0], None)
    return ObjectRow(
        case, "sign", number, p, listed, 0.5, 7.0, 3.0, None, "ml", voxels, 0.9, 0.99, None, *place, None, None
    )


@pytest.fixture
def result():
    rows = [row("=a", 1, 0.99), row("b", 1, 0.4, False), row("b", 2, None, None), row("b", 3, 0.6, voxels=9)]
    cases = [
        ObjectCaseRow("=a", "sign", 1, 0.99, 1, 0.5, 2.0, None, None),
        ObjectCaseRow("b", "sign", 3, 1, 1, 0.5, 2.0, 3, 1),
    ]
    return Objects(rows, cases, [], 0.9, 0.1, "iou", 0.1, "held out", "All is well.")


def test_what_is_least_sure_stands_first_and_large_ones_before_small_ones(result):
    assert [(each.case, each.object) for each in result.first()] == [("b", 2), ("b", 3), ("b", 1), ("=a", 1)]


def test_files_hold_every_row(result, tmp_path):
    write_objects(result, tmp_path)
    with (tmp_path / "objects.csv").open(newline="") as file:
        read = list(csv.DictReader(file))
    assert (read[0]["case"], read[0]["box"], read[0]["size_high"]) == ("'=a", "0 1 3 5", "")
    assert CSV_SIGNATURE.match((tmp_path / "objects.csv").read_bytes())
    assert JSON_SIGNATURE.match((tmp_path / "objects.json").read_bytes())
    plain = json.loads((tmp_path / "objects.json").read_text("utf-8"))
    assert plain["rows"][2]["p_real"] is None
    assert plain["cases"][1]["missed"] == 1


def test_it_prints_counts_and_the_promise(result):
    assert "4 objects, 2 listed; about 2.0 are real and 0.50 are missed in a case.\nAll is well." in str(result)
