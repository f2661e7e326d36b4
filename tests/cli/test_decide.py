"""``segcal decide`` as a user calls it."""

import csv

import numpy as np
import pytest


@pytest.fixture
def learned(run, make_folders, tmp_path):
    """A calibrator whose fit remembers twelve cases, and folders of new ones."""
    old = make_folders(ids=[f"{letter}{number}" for letter in "abcdef" for number in (1, 2)], folder="old")
    assert run("fit", *old.both, "-o", tmp_path / "cal", "--calibrator", "ts").code == 0
    return tmp_path / "cal", make_folders(ids=("n1", "n2", "m1"), folder="new", seed=9)


def test_it_writes_masks_and_prints_a_table(learned, run, tmp_path):
    calibrator, new = learned
    call = ("decide", calibrator, new.predictions, *new.options, "-o", tmp_path / "out", "--rule", "dice")
    done = run(*call)
    assert done.code == 0, done
    assert "3 cases written to" in done.out
    assert "Nothing is guaranteed" in done.out
    assert "class 1" in done.out
    with (tmp_path / "out" / "decide.csv").open(newline="") as file:
        assert [row["case"] for row in csv.DictReader(file)] == ["m1", "m1", "n1", "n1", "n2", "n2"]
    again = run(*call, "--json")
    assert again.code == 0
    assert len(again.document["rows"]) == 6
    assert "0 cases written" in run(*call).out


def test_masks_of_structures_may_overlap(learned, run, tmp_path):
    nibabel = pytest.importorskip("nibabel")
    calibrator, new = learned
    options = ["--rule", "recall=0.8", "--all-classes", "--json"]
    done = run("decide", calibrator, new.predictions, *new.options, "-o", tmp_path / "out", *options)
    assert done.code == 0, done
    assert "about so, and nothing is proved" in done.document["promise"]
    for number in range(3):
        values = np.asarray(nibabel.load(tmp_path / "out" / f"class{number}" / "n1.nii.gz").dataobj)
        row = done.document["rows"][3 + number]
        assert (row["case"], row["voxels"]) == ("n1", values.sum())
        assert row["guaranteed"] == 0.8


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ("recall=0.95", "error: a share of 0.05 is asked for, but 12 reference draws"),
        ("iou", "error: no rule is named 'iou'. Choose one of: argmax, dice, recall, precision, volume."),
    ],
)
def test_mistakes_are_one_sentence(learned, run, tmp_path, rule, text):
    calibrator, new = learned
    done = run("decide", calibrator, new.predictions, *new.options, "-o", tmp_path / "out", "--rule", rule)
    assert done.code == 2
    assert done.err.startswith(text)
    assert not (tmp_path / "out").exists()
