"""The default choice is the one of `segcal fit` with the validation cases of the benchmark."""

from dataclasses import replace

import pytest
from segcal.studies.default import choose_default

from segcal.fitting.contest import compare, read_poolings
from segcal.kernels.threads import one_thread


def test_the_choice_is_the_one_that_a_fit_would_make(setting):
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
