"""Model size: tasks are ordered by what the protocol says of their models."""

import pytest

from segcal.studies.model_size import run_model_size
from segcal.studies.study import NothingToStudyError


def test_models_are_ordered_by_their_size(setting):
    study = run_model_size(setting)
    found = study.data.tasks["mean_logits"]
    assert list(found) == ["toy (100)", "plain (400)"]
    expected = setting.summary.numbers("toy", "identity(mean_logits)")["ece"]
    assert found["toy (100)"]["ece"] == expected


def test_one_model_is_no_comparison(with_options):
    with pytest.raises(NothingToStudyError, match=r"study_options.model_sizes names fewer than two tasks"):
        run_model_size(with_options(model_sizes={"toy": 5}))
