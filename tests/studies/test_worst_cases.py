"""The cases that a critical reader would ask for."""

import json

import numpy as np
import pytest

from segcal.studies import worst_cases
from segcal.studies.worst_cases import (
    case_rows,
    choose_cases,
    choose_pipeline,
    local_pipeline,
    run_worst_cases,
)


@pytest.fixture(scope="module")
def study(setting):
    return run_worst_cases(setting)


def test_every_task_has_its_pipeline_and_its_cases_worst_first(setting, study):
    assert set(study.data["tasks"]) == {"toy", "plain"}
    found = study.data["tasks"]["toy"]
    assert found["chosen"]["title"] in {"identity(mean_logits)", "ts(mean_logits)", "cms_ap(mean_logits)"}
    losses = [each["nll"][1] for each in found["cases"]]
    assert losses == sorted(losses, reverse=True)
    every = setting.results.repeats("toy", found["chosen"]["title"])[0].numbers("nll")
    assert losses[0] == max(every)
    assert found["of"] == len(every) == 4


def test_a_case_has_its_numbers_before_and_after_and_its_maps(setting, study):
    found = study.data["tasks"]["toy"]
    first = found["cases"][0]
    before = {row["case"]: row for row in setting.results.repeats("toy", "identity(mean_logits)")[0].rows}
    assert first["ece"][0] == before[first["case"]]["metrics"]["ece"]
    assert first["shape"] == [12, 17]
    assert {"truth", "prediction", "before", "after", "image", "energy"} <= set(first["slices"][0])


def test_reasons_are_given_and_cases_are_few():
    rng = np.random.default_rng(0)
    rows = {f"c{i:03d}": {"nll": rng.random(2).tolist()} for i in range(300)}
    chosen = choose_cases(rows)
    assert 3 <= len(chosen) <= 6
    worst = max(rows, key=lambda name: rows[name]["nll"][1])
    assert next(iter(chosen)) == worst
    most = max(rows, key=lambda name: rows[name]["nll"][0] - rows[name]["nll"][1])
    assert "most gain" in chosen[most]


def test_pictures_of_a_task_are_bounded(setting, monkeypatch):
    monkeypatch.setattr(worst_cases, "BUDGET", 1)
    assert len(worst_cases.look_at(setting, setting.tasks[0])["cases"]) == 1


def test_without_validation_cases_a_safe_calibrator_is_taken(setting, monkeypatch):
    split = setting.split(setting.tasks[0], "mean_logits")
    monkeypatch.setattr(type(setting), "split", lambda *_: split._replace(val=split.val.subset([])))
    pipeline, validation = choose_pipeline(setting, setting.tasks[0])
    assert (pipeline.title, validation) == ("ts(mean_logits)", {})


def test_the_rows_hold_both_stages(setting):
    pipeline, _ = choose_pipeline(setting, setting.tasks[1])
    rows = case_rows(setting, "plain", pipeline)
    assert set(next(iter(rows.values()))) == {"nll", "ece", "dice", "voxels", "flip_rate"}


def test_it_is_written_as_json_and_as_a_table(study, tmp_path):
    paths = study.write(tmp_path)
    assert json.loads(paths[0].read_text())["study"] == "worst_cases"
    assert "the worst first" in (tmp_path / "tables" / "worst_cases.md").read_text()


def test_a_local_temperature_is_shown_where_one_was_fitted(setting, monkeypatch):
    assert local_pipeline(setting, setting.tasks[0], "mean_logits") is None
    monkeypatch.setattr(worst_cases, "LOCAL", ("none", "ts"))
    found = worst_cases.look_at(setting, setting.tasks[0])
    assert found["temperature"] == "ts(mean_logits)"
    assert all("temperature" in each for case in found["cases"] for each in case["slices"])
