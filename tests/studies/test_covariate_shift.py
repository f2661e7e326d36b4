"""Covariate shift: corrupted copies are told from other places, and changes are paired."""

from dataclasses import replace

import numpy as np
import pytest
from msgspec import structs

from segcal.report.pictures import decode_map
from segcal.studies.covariate_shift import (
    STUDY,
    CorruptedPicture,
    CovariateShiftData,
    ShiftedTask,
    compare_shift,
    corruption_figure,
    run_covariate_shift,
    settings_table,
)
from segcal.studies.study import NothingToStudyError
from segcal.summary import Bootstrap


def test_the_settings_are_those_of_table_6():
    text = settings_table().to_markdown()
    assert "| Gaussian blur (taps, sigma) | 5, 1 | 13, 3 |" in text
    assert "| JPEG compression (quality) | 60 | 10 |" in text
    assert len(settings_table().rows) == 5


def test_only_copies_of_the_same_cases_count_as_covariate_shift(setting):
    study = run_covariate_shift(setting)
    assert list(study.data.tasks) == ["toy"]
    assert list(study.data.tasks["toy"].pipelines["ts(mean_logits)"]) == ["", "toy_strong"]


def test_the_change_is_the_mean_of_paired_differences(setting):
    study = run_covariate_shift(setting)
    change = study.data.tasks["toy"].pipelines["ts(mean_logits)"]["toy_strong"].change["nll"]
    means = []
    for clean, shifted in zip(
        setting.results.repeats("toy", "ts(mean_logits)"),
        setting.results.repeats("toy", "ts(mean_logits)", "toy_strong"),
        strict=True,
    ):
        assert [row.case for row in clean.rows] == [row.case for row in shifted.rows]
        means.append(np.mean(np.subtract(shifted.numbers("nll"), clean.numbers("nll"))))
    assert change.value == pytest.approx(np.mean(means))
    assert change.low > 0
    assert change.worse == change.cases == 8
    heading = study.tables["covariate_shift"].to_markdown().splitlines()[2]
    assert heading == "| Pipeline | clean NLL ↓ | clean ECE ↓ | toy_strong ΔNLL ↓ | toy_strong ΔECE ↓ |"


def test_a_copy_of_some_cases_is_compared_on_those(setting):
    clean = setting.results.repeats("toy", "ts(mean_logits)")
    shifted = setting.results.repeats("toy", "ts(mean_logits)", "toy_strong")
    some = [structs.replace(unit, rows=unit.rows[1:3]) for unit in shifted]
    change = compare_shift(clean, some, Bootstrap(20, 0, 0.9))["nll"]
    gaps = [
        np.subtract(there.numbers("nll")[1:3], own.numbers("nll")[1:3]).mean()
        for own, there in zip(clean, shifted, strict=True)
    ]
    assert change.cases == 4
    assert change.value == pytest.approx(np.mean(gaps))


def test_what_is_not_finished_is_left_out(setting):
    last = max(each.unit.repeat for each in setting.results.units)
    units = tuple(
        each
        for each in setting.results.units
        if (each.header.title, each.unit.test_on, each.unit.repeat) != ("ts(mean_logits)", "toy_strong", last)
    )
    assert len(units) == len(setting.results.units) - 1
    results = structs.replace(setting.results, units=units)
    found = run_covariate_shift(replace(setting, results=results)).data.tasks["toy"].pipelines
    assert list(found["ts(mean_logits)"]) == [""]
    others = {title: list(places) for title, places in found.items() if title != "ts(mean_logits)"}
    assert others
    assert all(places == ["", "toy_strong"] for places in others.values())


def test_one_picture_is_shown_in_all_corruptions(setting):
    example = run_covariate_shift(setting).data.tasks["toy"].example
    assert list(example.images) == ["clean", "noise", "blur", "brightness", "jpeg", "fog"]
    clean, fog = (decode_map(example.images[kind]) for kind in ("clean", "fog"))
    assert np.abs(fog - (0.5 * clean + 0.5)).max() < 2 / 255


def test_without_copies_there_is_nothing_to_study(setting):
    tasks = tuple(structs.replace(task, test_on=()) for task in setting.protocol.tasks)
    with pytest.raises(NothingToStudyError, match="no task has a corrupted copy of its cases in test_on"):
        run_covariate_shift(replace(setting, protocol=structs.replace(setting.protocol, tasks=tasks)))


def test_every_kind_is_named_above_its_picture(texts, picture):
    figure = corruption_figure(dict.fromkeys(("clean", "noise", "fog", "mine"), picture))
    assert {"clean", "Gaussian noise", "fog", "mine"} <= set(texts(figure))
    assert sum(len(axis.images) for axis in figure.axes) == 4


def test_a_corrupted_picture_is_drawn_where_there_is_one(section, picture):
    def data(example):
        return CovariateShiftData({"heart": ShiftedTask({}, example)}, {})

    (drawn,) = STUDY.figures(data(CorruptedPicture("x", {"clean": picture, "fog": picture})), section)
    assert drawn.name == "corruptions_heart"
    assert list(STUDY.figures(data(None), section)) == []
