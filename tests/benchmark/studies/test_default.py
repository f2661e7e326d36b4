"""The default choice is the one of `segcal fit`."""

import pytest

from segcal.benchmark.job import one_thread
from segcal.benchmark.studies.default import choose_default
from segcal.fitting.choice import choose
from segcal.fitting.fit import read_data


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
