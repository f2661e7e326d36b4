import pytest

from segcal.cases import CaseRow, CheckResult, Problem


def result(rows, names=None):
    return CheckResult("npy", "logits", "single", 1, 2, names, len(rows), rows)


def row(predicted, labels):
    return CaseRow("a", (2, 4), "float32", 1.0, 1.0, 0.5, predicted, labels)


def test_class_shares_are_of_all_voxels_together():
    table = result([row((3, 1), (4, 0)), row((0, 4), (1, 3))], ("x", "y")).class_table()
    assert [line["name"] for line in table] == ["x", "y"]
    assert [line["predicted"] for line in table] == pytest.approx([3 / 8, 5 / 8])
    assert [line["labels"] for line in table] == pytest.approx([5 / 8, 3 / 8])


def test_without_labels_or_rows_shares_are_absent():
    assert result([row((3, 1), None)]).class_table()[0]["labels"] is None
    assert result([]).class_table()[1] == {"class": 1, "name": None, "predicted": 0.0, "labels": None}


def test_only_errors_make_a_folder_unusable():
    found = result([])
    found.problems.append(Problem("a", "warning", "x"))
    assert found.usable
    found.problems.append(Problem("a", "error", "y"))
    assert not found.usable
