"""Factors: the numbers of each setting are those of evaluate, and what cannot be run is said."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from segcal.studies.factors import (
    compare_models,
    run_crop_size,
    run_ensemble_size,
    run_model_size,
    run_test_scales,
)

from segcal import evaluate
from segcal.benchmark.tasks import OpenTask
from segcal.cases import ArrayCases
from segcal.studies.setting import NothingToStudyError


def test_each_number_of_members_is_measured(setting):
    study = run_ensemble_size(setting)
    found = study.data["tasks"]["toy"]
    assert list(found) == ["1", "2", "3"]
    for size in (1, 3):
        cases = setting.some(setting.open(setting.tasks[0], "mean_logits", size).cases)
        result = evaluate(cases, metrics=["ece", "miou"]).before
        assert found[str(size)]["ece"]["value"] == result["ece"].value
        assert found[str(size)]["miou"]["value"] == result["miou"].value
    assert found["3"]["miou"]["value"] > found["1"]["miou"]["value"]
    assert "| 3 |" in study.tables["ensemble_size"].to_markdown()


def test_models_are_compared_on_the_same_cases():
    rng = np.random.default_rng(0)
    images = [rng.random((2, 6, 7)).astype("float32") for _ in range(3)]
    labels = [image.argmax(0) for image in images]
    cases = ArrayCases([np.zeros((2, 6, 7), "float32")] * 3, labels, images=images)
    found = compare_models(cases, {"good": lambda image: 9 * image, "bad": lambda image: -9 * image})
    assert (found["good"]["miou"]["value"], found["bad"]["miou"]["value"]) == (1.0, 0.0)
    expected = torch.softmax(9 * torch.as_tensor(np.stack(images)), 1).amax(1)
    assert found["good"]["ece"]["value"] == pytest.approx(float((1 - expected).mean()), rel=1e-5)


@pytest.mark.parametrize(("run", "values"), [(run_crop_size, 3), (run_test_scales, 3)])
def test_models_of_embedded_tasks_are_run_in_every_way(setting, run, values):
    study = run(setting)
    assert list(study.data["tasks"]) == ["toy", "plain"]
    found = study.data["tasks"]["toy"]
    assert len(found) == values
    assert all(0 < numbers["ece"]["value"] < 1 for numbers in found.values())


def test_crops_do_not_matter_to_a_model_without_neighbours_and_scales_do(setting):
    crops = run_crop_size(setting).data["tasks"]["toy"]
    assert len({numbers["ece"]["value"] for numbers in crops.values()}) == 1
    scales = run_test_scales(setting).data["tasks"]["toy"]
    assert next(iter(scales)) == "1"
    assert len({numbers["ece"]["value"] for numbers in scales.values()}) == 3


def test_tasks_without_a_model_have_nothing_to_run(setting):
    def open_plain(task, pooling):
        opened = setting.embedded(task, pooling)
        return OpenTask(opened.cases, opened.background)

    with pytest.raises(NothingToStudyError, match="no task has a model that can be run"):
        run_crop_size(replace(setting, embedded=open_plain))


def test_models_are_ordered_by_their_size(setting):
    study = run_model_size(setting)
    found = study.data["tasks"]["mean_logits"]
    assert list(found) == ["toy (100)", "plain (400)"]
    expected = setting.numbers("toy", "identity(mean_logits)")["ece"]
    assert found["toy (100)"]["ece"] == expected


def test_one_model_is_no_comparison(setting):
    options = replace(setting.options, model_sizes={"toy": 5})
    with pytest.raises(NothingToStudyError, match=r"study_options.model_sizes names fewer than two tasks"):
        run_model_size(replace(setting, options=options))


def test_a_single_member_is_no_ensemble(setting):
    tasks = tuple(replace(task, members=1) for task in setting.protocol.tasks)
    with pytest.raises(NothingToStudyError, match="no task has two members"):
        run_ensemble_size(replace(setting, protocol=replace(setting.protocol, tasks=tasks)))
