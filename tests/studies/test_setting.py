"""A finished benchmark can be read again: its cases, divisions, calibrators and numbers."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from segcal.benchmark.pipelines import Pipeline
from segcal.fitting.contest import compare, read_poolings
from segcal.kernels.loops import one_thread
from segcal.studies.setting import choose_default


def test_the_division_is_that_of_the_results(setting):
    for repeat in (0, 1):
        unit = setting.results.repeats("toy", "ts(mean_logits)")[repeat]
        split = setting.split(setting.tasks[0], "mean_logits", repeat)
        assert [sorted(part.ids) for part in split] == [
            list(getattr(unit.header, part)) for part in ("cal", "val", "test")
        ]


def test_a_loaded_calibrator_gives_the_numbers_of_the_results(setting):
    task, pipeline = setting.tasks[0], Pipeline("mean_logits", "ms")
    calibrator = setting.calibrator(task, pipeline, repeat=1)
    for row in setting.results.repeats("toy", pipeline.title)[1].rows[:2]:
        case = setting.protocol.open(task, "mean_logits").cases.read(row.case)
        with torch.no_grad():
            log_probs = calibrator(case.logits[None])[0].numpy()
        labels = case.labels.numpy()
        own = [-log_probs[labels[i, j], i, j] for i, j in zip(*np.nonzero(labels >= 0), strict=True)]
        assert row.metrics["nll"] == pytest.approx(np.mean(own), rel=1e-5)


def test_no_calibration_is_a_calibrator_too(setting):
    calibrator = setting.calibrator(setting.tasks[0], Pipeline("mean_logits", "identity"))
    assert calibrator.num_parameters() == 0


def test_fewer_members_are_pooled_when_asked_for(setting):
    task = setting.tasks[0]
    one = setting.protocol.open(task, "mean_logits", members=1).cases.read("case00")
    alone = setting.protocol.open(task, "single").cases.read("case00")
    every = setting.protocol.open(task, "mean_logits").cases.read("case00")
    assert (one.logits == alone.logits).all()
    assert not (one.logits == every.logits).all()


def test_only_as_many_cases_are_read_as_the_options_allow(setting):
    assert setting.some(setting.protocol.open(setting.tasks[0], "mean_logits").cases).ids == ("case00", "case01")


def test_tasks_that_are_only_tested_on_are_no_tasks_of_studies(setting):
    assert [task.name for task in setting.tasks] == ["toy", "plain"]
    assert setting.summary.numbers("toy", "nothing") == {}


def test_the_choice_is_the_one_that_a_fit_would_make(setting):
    # The choice is the one of `segcal fit` with the validation cases of the benchmark.
    task = setting.tasks[0]
    found = choose_default(setting, task)
    split = setting.split(task, "mean_logits")
    config = replace(setting.protocol.fit, voxels="all")  # a benchmark measures on all of them
    with one_thread():
        expected = compare(["identity", "ts"], read_poolings(split.cal, split.val, config), config).decision
    assert found.reason == expected.reason
    for row in expected.candidates:
        assert found.validation_nll[f"{row.name}(mean_logits)"] == pytest.approx(row.nll, rel=1e-3)
    assert "ms(mean_logits)" not in found.validation_nll
