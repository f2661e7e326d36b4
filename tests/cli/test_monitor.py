"""``segcal monitor`` as a user calls it."""

import numpy as np
import pytest


@pytest.fixture
def learned(run, make_folders, tmp_path):
    ids = [f"{letter}{number}" for letter in "abcdefgh" for number in (1, 2, 3)]
    old = make_folders(ids=ids, folder="old")
    done = run("fit", *old.both, "-o", tmp_path / "cal", "--calibrator", "ts")
    assert done.code == 0, done
    return tmp_path / "cal", make_folders(ids=[f"n{k}" for k in range(9)], folder="new", seed=9)


def test_a_stream_goes_on_in_its_file(learned, run, tmp_path):
    calibrator, new = learned
    arguments = ("monitor", calibrator, new.predictions, *new.options, "--state", tmp_path / "s.json")
    first = run(*arguments)
    assert first.code == 0, first
    assert "9 draws added, " in first.out
    assert "no sign of a drift in 9 draws" in first.out
    assert "0 draws added" in run(*arguments).out
    few = run("monitor", calibrator, new.predictions, *new.options, "--rate", "0.001")
    assert "with 24 reference draws no single one can be rarer than that" in few.out


def test_a_drift_is_an_exit_code_and_a_document(learned, run, tmp_path):
    calibrator, new = learned
    for path in new.predictions.iterdir():
        np.save(path, 0.1 * np.load(path))
    done = run("monitor", calibrator, new.predictions, *new.options, "--json")
    assert done.code == 4
    found = done.document
    assert found["applies"] is False
    assert found["verdict"].startswith("this calibrator no longer applies: since n0")
    assert len(found["draws"]) == 9
    assert "unusual" in run("monitor", calibrator, new.predictions, *new.options).out
