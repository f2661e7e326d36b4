"""The default choice: the rule by hand, and that it is the one of `segcal fit`."""

import numpy as np
import pytest

from segcal.benchmark.job import one_thread
from segcal.benchmark.studies.default import choose_column, choose_default
from segcal.fitting.choice import choose
from segcal.fitting.fit import read_data


def test_the_best_is_taken_if_it_is_better_beyond_doubt():
    values = np.array([[2.0, 1.0], [2.1, 1.1], [1.9, 0.9]])
    assert choose_column(values, [0, 5]) == 1


def test_what_cannot_be_told_apart_is_decided_by_simplicity():
    values = np.array([[1.0, 1.2, 1.5], [1.2, 1.0, 1.6], [1.1, 1.08, 1.4]])
    assert choose_column(values, [4, 9, 0]) == 0
    assert choose_column(values, [9, 4, 0]) == 1


def test_with_one_case_the_best_wins():
    assert choose_column(np.array([[1.0, 0.999]]), [0, 100]) == 1


def test_the_choice_is_the_one_that_a_fit_would_make(setting):
    task = setting.tasks[0]
    found = choose_default(setting, task)
    split, config = setting.split(task, "mean_logits"), setting.protocol.fit
    with one_thread():
        expected = choose(["identity", "ts", "cms_ap"], read_data(split.cal, split.val, config), config)
    assert found.pipeline.calibrator == expected.chosen.name
    for row in expected.candidates:
        assert found.validation_nll[f"{row.name}(mean_logits)"] == pytest.approx(row.validation_nll, rel=1e-4)
    assert "ms(mean_logits)" not in found.validation_nll
