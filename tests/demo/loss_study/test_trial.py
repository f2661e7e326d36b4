import json

import numpy as np
import pytest

from segcal.demo.loss_study import trial
from segcal.demo.loss_study.trial import FINDING, compare, made_up_cases, read_finding, try_graphs


class Trained:
    def __init__(self, loss):
        self.history = [type("Epoch", (), {"loss": loss})()]


def test_a_trial_that_fails_says_why_and_is_believed(tmp_path):
    try_graphs(tmp_path, "cpu", ("roads",))
    assert "graph is True with device 'cpu'" in json.loads((tmp_path / FINDING).read_text())["reason"]
    assert not read_finding(tmp_path, 0)


def test_trainings_that_differ_are_a_failure(monkeypatch):
    monkeypatch.setattr(trial, "train_unit", lambda unit, *_: (Trained(1.0 + 0.5 * _[-1].graph), {}))
    with pytest.raises(RuntimeError, match="roads ce_dice: plain losses"):
        compare("roads", "cuda")


def test_trainings_that_agree_are_timed(tmp_path, monkeypatch):
    monkeypatch.setattr(trial, "train_unit", lambda *_: (Trained(1.0), {}))
    try_graphs(tmp_path, "cuda", ("roads",))
    assert read_finding(tmp_path, 0)
    assert len(json.loads((tmp_path / FINDING).read_text())["seconds"]["roads"]) == 2


def test_no_answer_is_no():
    assert not read_finding(trial.Path("nowhere"), 0)


def test_made_up_cases_have_the_size_of_the_task():
    (case,) = made_up_cases("tumour", 1)
    assert case.image.shape == (4, 72, 64, 24)
    np.testing.assert_array_equal(case.labels, case.image[0] > 0.5)
