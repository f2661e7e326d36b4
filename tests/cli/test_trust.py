"""``segcal trust`` as a user calls it."""

import csv
import json

import numpy as np
import pytest


@pytest.fixture
def learned(run, make_folders, tmp_path):
    """A calibrator whose fit remembers twelve cases, and folders of new ones."""
    ids = [f"{letter}{number}" for letter in "abcdef" for number in (1, 2)]
    old = make_folders(ids=ids, folder="old")
    done = run("fit", *old.both, "-o", tmp_path / "cal", "--calibrator", "ts")
    assert done.code == 0, done
    assert "segcal trust will compare with 12 cases: the cases of the fit, each judged by a fit without it" in done.out
    return tmp_path / "cal", make_folders(ids=("n1", "n2", "m1"), folder="new", seed=9)


def test_it_writes_rows_and_prints_a_table(learned, run, tmp_path):
    calibrator, new = learned
    done = run("trust", calibrator, new.predictions, *new.options, "-o", tmp_path / "out", "--tau", "0.3", "--masks")
    assert done.code == 0, done
    assert (
        "of 6 structures to review. On average over cases like the reference, about 90 % of the intervals" in done.out
    )
    with (tmp_path / "out" / "trust.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["case"], row["structure"]) for row in rows[:2]] == [("m1", "class 1"), ("m1", "class 2")]
    assert json.loads((tmp_path / "out" / "trust.json").read_text("utf-8"))["level"] == 0.9
    assert np.load(tmp_path / "out" / "masks" / "n1.npy").shape == (2, 4, 5, 6)
    again = run("trust", calibrator, new.predictions, *new.options, "-o", tmp_path / "out")
    assert again.code == 0


def test_json_has_biomarkers_of_linked_cases(learned, run, tmp_path):
    calibrator, new = learned
    link = ["--link", r"^(\w)(\d)", "--biomarker", "gain=({class 1@1} - {class 1@2}) / {class 1@1}", "--level", "0.8"]
    done = run(
        "trust", calibrator, new.predictions, *new.options, "-o", tmp_path / "out", "--json", "--all-classes", *link
    )
    assert done.code == 0, done
    found = done.document
    assert [row["subject"] for row in found["biomarkers"]] == ["m", "n"]
    assert found["biomarkers"][0]["reason"] == "phase 2 is missing"
    assert len(found["rows"]) == 9
    assert found["draws"] == 12


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--level", "0.95"], "error: level is 0.95, but the reference has 12 draws"),
        (["--biomarker", "x"], "error: --biomarker is 'x', but NAME=EXPRESSION is needed"),
        (["--biomarker", "x={lung}"], "names the structure 'lung', but there are class 0, class 1, class 2"),
    ],
)
def test_mistakes_are_one_sentence(learned, run, tmp_path, options, text):
    calibrator, new = learned
    done = run("trust", calibrator, new.predictions, *new.options, "-o", tmp_path / "out", *options)
    assert done.code == 2
    assert text in done.err
    assert not (tmp_path / "out").exists()


def test_a_folder_of_somebody_else_is_not_written_to(learned, run, tmp_path):
    calibrator, new = learned
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "trust.csv").write_text("mine")
    done = run("trust", calibrator, new.predictions, *new.options, "-o", tmp_path / "out")
    assert done.code == 2
    assert "trust.csv exists and was not written by this command" in done.err
    assert (tmp_path / "out" / "trust.csv").read_text() == "mine"
