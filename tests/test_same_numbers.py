"""Two folders of results are the same, or what differs is said."""

import json

import pytest

from benchmarks.same_numbers import compare, main


@pytest.fixture
def folders(tmp_path):
    for name in ("old", "new"):
        for part in ("tables", "studies"):
            (tmp_path / name / part).mkdir(parents=True)
        (tmp_path / name / "tables" / "a.csv").write_text("x,0.12\ny,0.34\n")
        (tmp_path / name / "summary.json").write_text(json.dumps({"hash": name, "rows": [{"nll": 0.1}, {"nll": 0.2}]}))
        (tmp_path / name / "studies" / "flips.json").write_text(json.dumps({"digest": name, "n": 1}))
        (tmp_path / name / "report.html").write_text(name)
    return tmp_path / "old", tmp_path / "new"


def test_equal_numbers_are_equal_whatever_made_them(folders, capsys):
    assert main([str(folder) for folder in folders]) == 0
    assert capsys.readouterr().out == "the same numbers in 3 files\n"


def test_a_changed_digit_a_missing_and_a_new_file_are_named(folders, capsys):
    old, new = folders
    (new / "tables" / "a.csv").write_text("x,0.12\ny,0.35\n")
    (new / "summary.json").write_text(json.dumps({"rows": [{"nll": 0.1}, {"nll": 0.2000000001, "more": 1}]}))
    (old / "verdict.json").write_text("{}")
    assert main([str(old), str(new)]) == 1
    assert compare(old, new) == {
        "summary.json": [".rows[1].nll: 0.2 -> 0.2000000001", ".rows[1].more only in the new one"],
        "tables/a.csv": ["-y,0.34", "+y,0.35"],
        "verdict.json": ["only in the old folder"],
    }
    assert "3 of 4 files differ" in capsys.readouterr().out


def test_digits_beyond_those_asked_for_may_differ_in_documents(folders):
    old, new = folders
    (new / "summary.json").write_text(json.dumps({"rows": [{"nll": 0.1}, {"nll": 0.2000000001}]}))
    assert compare(old, new, digits=9) == {}
    assert list(compare(old, new, digits=12)) == ["summary.json"]
    (new / "studies" / "flips.json").write_text(json.dumps({"n": True}))
    assert list(compare(old, new, digits=9)) == ["studies/flips.json"]


def test_a_folder_without_results_is_refused(tmp_path):
    with pytest.raises(SystemExit, match=r"holds no results"):
        compare(tmp_path, tmp_path)
