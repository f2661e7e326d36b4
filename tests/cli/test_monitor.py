"""``segcal monitor`` as a user calls it."""

import json

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


def test_an_alarm_is_printed_by_monitor_and_trust(learned, run, tmp_path):
    calibrator, new = learned
    assert run("monitor", calibrator, new.predictions, *new.options, "--json").document["alarms"] == []
    for path in new.predictions.iterdir():
        logits = np.load(path)
        logits[1] += 4
        np.save(path, logits)
    watched = run("monitor", calibrator, new.predictions, *new.options)
    trusted = run("trust", calibrator, new.predictions, *new.options, "-o", tmp_path / "trust")
    assert (watched.code, trusted.code) == (4, 0)
    for done in (watched, trusted):
        said = " ".join(done.out.split())
        assert "class frequencies since n0 are unlike those of any part of the reference cases, most that of " in said
        assert "there. Label some of these cases and fit again." in said
    assert json.loads((tmp_path / "trust" / "trust.json").read_text())["alarms"]
