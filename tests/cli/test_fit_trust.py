"""Which cases ``segcal fit`` remembers, as its options say."""

import json

import pytest


def reference(folder):
    return json.loads((folder / "calibrator.json").read_text("utf-8"))["reference"]


@pytest.mark.parametrize(
    ("options", "source", "count"),
    [
        ([], "out of fold", 6),
        (["--val-share", "0.34"], "validation", 2),
        (["--val-share", "0.34", "--trust-on", "folds"], "out of fold", 4),
        (["--test-share", "0.34", "--trust-on", "test"], "held out", 2),
    ],
)
def test_cases_are_those_that_the_options_name(folders, run, tmp_path, options, source, count):
    done = run("fit", *folders.both, "-o", tmp_path / "cal", "--calibrator", "ts", "--json", *options)
    assert done.code == 0, done
    found = reference(tmp_path / "cal")
    assert (found["source"], len(found["cases"])) == (source, count)
    assert done.document["trust"] == {"source": source, "cases": count}


def test_folders_of_their_own_are_held_out(folders, make_folders, run, tmp_path):
    other = make_folders(ids=("x1", "x2", "x3"), folder="other", seed=8)
    options = ["--trust-predictions", other.predictions]
    done = run("fit", *folders.both, "-o", tmp_path / "cal", "--calibrator", "ts", *options)
    assert done.code == 0, done
    found = reference(tmp_path / "cal")
    assert [each["id"] for each in found["cases"]] == ["x1", "x2", "x3"]
    assert found["source"] == "held out"


def test_validation_folders_are_remembered_as_such(folders, make_folders, run, tmp_path):
    other = make_folders(ids=("x1", "x2"), folder="other", seed=8)
    done = run("fit", *folders.both, "-o", tmp_path / "cal", "--calibrator", "ts", "--validation", other.predictions)
    assert done.code == 0, done
    assert reference(tmp_path / "cal")["source"] == "validation"


def test_it_can_be_left_out_and_one_group_has_nothing_to_hold_out(folders, run, tmp_path):
    done = run("fit", *folders.both, "-o", tmp_path / "cal", "--calibrator", "ts", "--trust-on", "none")
    assert done.code == 0
    assert reference(tmp_path / "cal") is None
    done = run("fit", *folders.both, "-o", tmp_path / "one", "--calibrator", "ts", "--groups", "()")
    assert done.code == 0, done
    assert reference(tmp_path / "one") is None


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("test", "--trust-on is test, but no case was left unseen. Pass --test-share, or other folders."),
        ("validation", "--trust-on is validation, but there are no validation cases. Pass --validation, or folds."),
    ],
)
def test_cases_that_are_not_there_are_asked_for(folders, run, tmp_path, name, text):
    done = run("fit", *folders.both, "-o", tmp_path / "cal", "--calibrator", "ts", "--trust-on", name)
    assert done.code == 2
    assert text in done.err
