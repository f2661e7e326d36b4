"""Shift: hand-made rows of other domains; corrupted copies are told from other places, and changes are paired."""

from dataclasses import replace

import numpy as np
import pytest
from msgspec import structs

from segcal.report.images import decode_map
from segcal.studies.shift import COVARIATE_SHIFT, DOMAIN_SHIFT, compare_shift, corruption_figure
from segcal.summary import Bootstrap, Estimate, ResultRow


def test_rows_and_columns_of_domains_are_those_of_hand_made_results(setting, studied, tables):
    def result(task, target, pipeline, ece, miou):
        metrics = {"ece": Estimate(ece, None, None), "miou": Estimate(miou, None, None)}
        return ResultRow(task, target, pipeline, metrics, converged=True)

    rows = (
        result("toy", "", "identity(mean_logits)", 0.2, 0.5),
        result("toy", "", "ts(mean_logits)", 0.1, 0.5),
        result("toy", "elsewhere", "identity(single)", 0.5, 0.25),
        result("toy", "elsewhere", "identity(mean_logits)", 0.4, 0.3),
        result("toy", "elsewhere", "ts(mean_logits)", 0.3, 0.3),
    )
    data = DOMAIN_SHIFT.run(replace(setting, summary=structs.replace(setting.summary, results=rows)))
    text = tables("domain_shift", data)
    assert "| Model | mIoU | Uncal | ts |" in text
    assert "| *toy* | | | |\n| mean_logits | 50.00 | 0.200 | 0.100 |" in text
    there = "| *toy to elsewhere* | | | |\n| single | 25.00 | 0.500 | — |\n| mean_logits | 30.00 | 0.400 | 0.300 |"
    assert there in text
    places = {(row.InD, row.SD, row.model) for row in studied["domain_shift"].domain_shift}
    assert places == {
        ("toy", target, pooling) for target in ("toy_strong", "elsewhere") for pooling in ("single", "mean_logits")
    }


def test_the_change_is_the_mean_of_paired_differences_of_copies_alone(setting, studied, tables):
    data = studied["covariate_shift"]
    assert list(data.tasks) == ["toy"]
    places = data.tasks["toy"].pipelines["ts(mean_logits)"]
    assert list(places) == ["", "toy_strong"]
    change = places["toy_strong"].change["nll"]
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
    text = tables("covariate_shift", data)
    assert "| Pipeline | clean NLL ↓ | clean ECE ↓ | toy_strong ΔNLL ↓ | toy_strong ΔECE ↓ |" in text
    assert "| Gaussian blur (taps, sigma) | 5, 1 | 13, 3 |" in text  # Table 6
    assert "| JPEG compression (quality) | 60 | 10 |" in text


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


def test_what_is_not_finished_is_left_out(changed):
    missing = ("ts(mean_logits)", "toy_strong", 1)
    other = changed(units=lambda each: (each.header.title, each.unit.test_on, each.unit.repeat) != missing)
    found = {title: list(own) for title, own in COVARIATE_SHIFT.run(other).tasks["toy"].pipelines.items()}
    assert found.pop("ts(mean_logits)") == [""]
    assert found
    assert all(places == ["", "toy_strong"] for places in found.values())


def test_one_picture_is_shown_in_all_corruptions(studied, figures, texts, picture):
    example = studied["covariate_shift"].tasks["toy"].example
    assert list(example.images) == ["clean", "noise", "blur", "brightness", "jpeg", "fog"]
    clean, fog = (decode_map(example.images[kind]) for kind in ("clean", "fog"))
    assert np.abs(fog - (0.5 * clean + 0.5)).max() < 2 / 255
    figure = corruption_figure(dict.fromkeys(("clean", "noise", "fog", "mine"), picture))
    assert {"clean", "Gaussian noise", "fog", "mine"} <= set(texts(figure))
    assert sum(len(axis.images) for axis in figure.axes) == 4

    def drawn(example):
        return figures("covariate_shift", {"tasks": {"heart": {"pipelines": {}, "example": example}}, "settings": {}})

    assert list(drawn({"case": "x", "images": {"clean": picture}})) == ["corruptions_heart"]
    assert drawn(None) == {}
