"""A finished benchmark can be read again: its cases, divisions, calibrators and numbers."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from segcal.benchmark.study_choice import STUDY_FACTS, USUAL

from segcal.benchmark.pipelines import Pipeline
from segcal.errors import InputError
from segcal.studies import STUDIES, run_studies


def test_the_division_is_that_of_the_results(setting):
    for repeat in (0, 1):
        unit = setting.results.repeats("toy", "ts(mean_logits)")[repeat]
        split = setting.split(setting.tasks[0], "mean_logits", repeat)
        assert [sorted(part.ids) for part in split] == [unit.header[part] for part in ("cal", "val", "test")]


def test_a_loaded_calibrator_gives_the_numbers_of_the_results(setting):
    task, pipeline = setting.tasks[0], Pipeline("mean_logits", "ms")
    calibrator = setting.calibrator(task, pipeline, repeat=1)
    for row in setting.results.repeats("toy", pipeline.title)[1].rows[:2]:
        case = setting.open(task, "mean_logits").cases.read(row["case"])
        with torch.no_grad():
            log_probs = calibrator(case.logits[None])[0].numpy()
        labels = case.labels.numpy()
        own = [-log_probs[labels[i, j], i, j] for i, j in zip(*np.nonzero(labels >= 0), strict=True)]
        assert row["metrics"]["nll"] == pytest.approx(np.mean(own), rel=1e-5)


def test_no_calibration_is_a_calibrator_too(setting):
    calibrator = setting.calibrator(setting.tasks[0], Pipeline("mean_logits", "identity"))
    assert calibrator.num_parameters() == 0


def test_fewer_members_are_pooled_when_asked_for(setting):
    task = setting.tasks[0]
    one = setting.open(task, "mean_logits", members=1).cases.read("case00")
    alone = setting.open(task, "single").cases.read("case00")
    every = setting.open(task, "mean_logits").cases.read("case00")
    assert (one.logits == alone.logits).all()
    assert not (one.logits == every.logits).all()


def test_only_as_many_cases_are_read_as_the_options_allow(setting):
    assert setting.some(setting.open(setting.tasks[0], "mean_logits").cases).ids == ("case00", "case01")


def test_tasks_that_are_only_tested_on_are_no_tasks_of_studies(setting):
    assert [task.name for task in setting.tasks] == ["toy", "plain"]
    assert setting.numbers("toy", "nothing") == {}


def test_all_studies_run_and_write_their_files(setting):
    studies, left_out = run_studies(setting, list(STUDIES))
    assert list(studies) == list(STUDIES)
    assert left_out == {}
    written = {path.stem for path in (setting.results.folder / "studies").glob("*.json")}
    assert written == set(STUDIES)
    stems = {path.stem for path in (setting.results.folder / "tables").glob("*.md")}
    assert {"table5_offsets", "figure4_flips", "figure5_size_toy", "figure6_binning", "padding"} <= stems


def test_every_study_says_what_it_needs_and_the_usual_ones_fit_nothing():
    assert list(STUDIES) == list(STUDY_FACTS)
    assert not {"calibration_size", "padding"} & set(USUAL)


def test_a_finished_study_is_read_back_and_one_with_other_options_is_done_anew(setting, monkeypatch):
    first, _ = run_studies(setting, ["binning"])
    path = setting.results.folder / "studies" / "binning.json"
    before = path.read_bytes()
    monkeypatch.setitem(STUDIES, "binning", lambda setting: pytest.fail("it is finished"))
    again, left_out = run_studies(setting, ["binning"])
    assert again["binning"].data == json.loads(json.dumps(first["binning"].data))
    assert (left_out, path.read_bytes()) == ({}, before)
    with pytest.raises(pytest.fail.Exception, match="it is finished"):
        run_studies(replace(setting, options=replace(setting.options, cases=1)), ["binning"])
    (setting.results.folder / "tables" / "figure6_binning.md").unlink()
    with pytest.raises(pytest.fail.Exception, match="it is finished"):
        run_studies(setting, ["binning"])


def test_a_unit_with_other_numbers_makes_its_studies_anew_though_its_digest_is_the_same(setting, monkeypatch):
    run_studies(setting, ["binning"])
    monkeypatch.setitem(STUDIES, "binning", lambda setting: pytest.fail("it is done anew"))
    path = setting.results.folder / setting.results.units[0].unit.path
    before = path.read_text("utf-8")
    header, row, rest = before.split("\n", 2)
    changed = json.loads(row)
    changed["metrics"]["ece"] += 0.25
    try:
        path.write_text("\n".join([header, json.dumps(changed), rest]), "utf-8")
        with pytest.raises(pytest.fail.Exception, match="it is done anew"):
            run_studies(setting, ["binning"])
    finally:
        path.write_text(before, "utf-8")
    run_studies(setting, ["binning"])


def test_the_studies_of_the_protocol_are_run_if_none_are_named(setting):
    protocol = replace(setting.protocol, studies=("reliability",))
    assert list(run_studies(replace(setting, protocol=protocol))[0]) == ["reliability"]


def test_a_study_that_does_not_exist_is_refused(setting):
    with pytest.raises(InputError, match=r"no study is named 'weather'\. Choose one of: offsets, flips"):
        run_studies(setting, ["weather"])
