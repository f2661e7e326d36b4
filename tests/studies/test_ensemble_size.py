"""Ensemble size: the numbers of each size are those of evaluate."""

from dataclasses import replace

import pytest
from msgspec import structs

from segcal import evaluate
from segcal.studies.ensemble_size import run_ensemble_size
from segcal.studies.study import NothingToStudyError


def test_each_number_of_members_is_measured(setting):
    study = run_ensemble_size(setting)
    found = study.data.tasks["toy"]
    assert list(found) == ["1", "2", "3"]
    for size in (1, 3):
        cases = setting.some(setting.protocol.open(setting.tasks[0], "mean_logits", size).cases)
        result = evaluate(cases, metrics=["ece", "miou"]).before
        assert found[str(size)]["ece"].value == result["ece"].value
        assert found[str(size)]["miou"].value == result["miou"].value
    assert found["3"]["miou"].value > found["1"]["miou"].value
    assert "| 3 |" in study.tables["ensemble_size"].to_markdown()


def test_a_single_member_is_no_ensemble(setting):
    tasks = tuple(structs.replace(task, members=1) for task in setting.protocol.tasks)
    with pytest.raises(NothingToStudyError, match="no task has two members"):
        run_ensemble_size(replace(setting, protocol=structs.replace(setting.protocol, tasks=tasks)))
