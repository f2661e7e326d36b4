"""A small world for commands: predictions, labels and a calibrator, made once and copied for each test."""

import shutil

import numpy as np
import pytest

import segcal
from segcal.cli import main


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """Predictions, labels, and a calibrator."""
    place, rng = tmp_path_factory.mktemp("made"), np.random.default_rng(0)
    for name in ("predictions", "labels"):
        (place / name).mkdir()
    for case_id in ("a", "b", "c"):
        scores = (3 * rng.normal(size=(2, 6, 7))).astype(np.float32)
        np.save(place / "predictions" / f"{case_id}.npy", scores)
        np.save(place / "labels" / f"{case_id}.npy", scores.argmax(0).astype(np.uint8))
    cases = segcal.open_cases(place / "predictions", place / "labels", kind="logits")
    segcal.save(segcal.learn_trust(segcal.fit("ts", cases), cases), place / "cal")
    return place


@pytest.fixture
def work(made, tmp_path, monkeypatch):
    """A copy of it to work in."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(capsys):
    """Run a command that is given as one text; return its code and its complaint."""

    def call(text):
        with pytest.raises(SystemExit) as stopped:
            main(text.split())
        return stopped.value.code, capsys.readouterr().err

    return call
