import json

import numpy as np
import pytest

from paper.loss_study import trial
from paper.loss_study.data import Stored
from paper.loss_study.plan import CONFIGS
from paper.loss_study.together import take_turns
from paper.loss_study.trainer import Epoch, Trained
from paper.loss_study.trial import EPOCHS, FINDING, TRIED, compare, made_up_cases, read_finding, try_graphs


class Trainings:
    """Stands in for the training of units: losses that may depend on whether steps are recorded."""

    def __init__(self, recorded_loss):
        self.recorded_loss = recorded_loss
        self.begun, self.in_progress, self.most = [], 0, {}

    def __call__(self, unit, data, effort, histograms):
        self.begun.append((unit.variant, effort.graph, effort.epochs, len(data.cases)))
        self.in_progress += 1
        self.most[effort.graph] = max(self.most.get(effort.graph, 0), self.in_progress)
        yield
        self.in_progress -= 1
        loss = self.recorded_loss(unit.variant) if effort.graph else 1.0
        return Trained(None, None, 1, (Epoch(1, loss, None),))


@pytest.fixture
def stand_in(monkeypatch):
    def install(recorded_loss):
        trainings = Trainings(recorded_loss)
        monkeypatch.setattr(trial, "unit_steps", trainings)
        return trainings

    return install


def test_a_trial_that_fails_says_why_and_is_believed(tmp_path, monkeypatch):
    image = np.random.default_rng(0).random((3, 16, 17), np.float32)
    small = [Stored("a", image, (image[0] > 0.5).astype(np.int64))]
    monkeypatch.setattr(trial, "made_up_cases", lambda task, count: small)
    try_graphs(tmp_path, "cpu", ("roads",))
    finding = json.loads((tmp_path / FINDING).read_text())
    assert not finding["works"]
    assert "graph is True with device 'cpu'" in finding["reason"]
    assert not read_finding(tmp_path, 0)


def test_plain_trainings_come_one_after_the_other_and_recorded_ones_side_by_side(stand_in):
    trainings = stand_in(lambda variant: 1.0)
    compare("roads", "cpu")
    count = 3 * CONFIGS["roads"].batch_size
    assert trainings.begun == [(variant, graph, EPOCHS, count) for graph in (False, True) for variant in TRIED]
    assert trainings.most == {False: 1, True: len(TRIED)}


def test_trainings_that_differ_are_a_failure(stand_in, tmp_path):
    stand_in(lambda variant: 1.5 if variant == "mbls" else 1.0)
    with pytest.raises(RuntimeError, match=r"roads mbls: plain losses \[1\.0\], recorded losses \[1\.5\]"):
        compare("roads", "cpu")
    try_graphs(tmp_path, "cpu", ("roads",))
    assert not read_finding(tmp_path, 0)


def test_a_loss_that_is_no_number_is_a_failure(stand_in):
    stand_in(lambda variant: float("nan"))
    with pytest.raises(RuntimeError, match="roads ce_dice: plain losses"):
        compare("roads", "cpu")


def test_trainings_that_agree_are_timed(stand_in, tmp_path):
    stand_in(lambda variant: 1.01)
    try_graphs(tmp_path, "cpu", ("roads", "streets"))
    assert read_finding(tmp_path, 0)
    seconds = json.loads((tmp_path / FINDING).read_text())["seconds"]
    assert {task: len(both) for task, both in seconds.items()} == {"roads": 2, "streets": 2}
    assert [path.name for path in tmp_path.iterdir()] == [FINDING]


def test_trainings_take_turns_on_the_device_of_the_study(stand_in, monkeypatch):
    stand_in(lambda variant: 1.0)
    asked = []

    def on_cpu(trainings, at_once, device):
        asked.append((at_once, device))
        return take_turns(trainings, at_once, "cpu")

    monkeypatch.setattr(trial, "take_turns", on_cpu)
    compare("roads", "cuda:1", ("ce", "focal"))
    assert asked == [(1, "cuda:1"), (2, "cuda:1")]


def test_no_answer_is_no(tmp_path):
    assert not read_finding(tmp_path, 0)


def test_an_answer_that_comes_late_is_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(trial.time, "sleep", lambda _: (tmp_path / FINDING).write_text('{"works": true}'))
    assert read_finding(tmp_path, 600)


def test_made_up_cases_have_the_size_of_the_task():
    (case,) = made_up_cases("tumour", 1)
    assert case.image.shape == (4, 72, 64, 24)
    np.testing.assert_array_equal(case.labels, case.image[0] > 0.5)
