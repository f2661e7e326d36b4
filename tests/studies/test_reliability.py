"""Reliability diagrams: which pipelines are chosen, and their curves."""

from dataclasses import replace

import numpy as np
import pytest
from msgspec import structs

from segcal.studies.reliability import (
    RULE,
    BinnedCurve,
    ChosenCurves,
    ReliabilityData,
    choose_pipelines,
    panel_figure,
    run_reliability,
)
from segcal.studies.study import NothingToStudyError
from segcal.summary import Estimate, ResultRow


def with_ace(setting, values):
    rows = tuple(
        ResultRow("toy", "", title, {"ace": Estimate(value, value, value)}, converged=True)
        for title, value in values.items()
    )
    return replace(setting, summary=structs.replace(setting.summary, results=rows))


def test_the_lowest_ace_wins_over_all_and_among_those_that_keep_the_order(setting):
    values = {
        "identity(single)": 0.01,
        "identity(mean_logits)": 0.02,
        "ts(mean_logits)": 0.3,
        "ms(mean_logits)": 0.2,
        "cms_ap(mean_logits)": 0.1,
    }
    chosen = {role: each.title for role, each in choose_pipelines(with_ace(setting, values), "toy").items()}
    assert chosen == {
        "single": "identity(single)",
        "uncalibrated": "identity(mean_logits)",
        "best": "cms_ap(mean_logits)",
        "best_order": "ts(mean_logits)",
    }


def test_curves_are_those_of_the_test_cases_of_all_repeats(setting):
    study = run_reliability(setting)
    found = study.data.tasks["plain"]["uncalibrated"]
    confidence, right = [], []
    for repeat in (0, 1):
        for case in setting.split(setting.tasks[1], "mean_logits", repeat).test:
            probs = np.exp(case.logits.numpy().astype(float))
            probs /= probs.sum(0)
            confidence.append(probs.max(0).ravel())
            right.append((probs.argmax(0) == case.labels.numpy()).ravel())
    confidence, right = np.concatenate(confidence), np.concatenate(right)
    for number in range(15):
        inside = (confidence > number / 15) & (confidence <= (number + 1) / 15)
        assert found.curve.count[number] == inside.sum()
        if inside.any():
            assert found.curve.accuracy[number] == pytest.approx(right[inside].mean())
            assert found.curve.confidence[number] == pytest.approx(confidence[inside].mean(), rel=1e-5)
        else:
            assert found.curve.accuracy[number] is None
    assert len(found.repeats) == 2
    assert found.curve.mean_accuracy == pytest.approx(right.mean())
    assert study.data.rule == RULE in study.tables["figure8_reliability"].notes


def test_without_an_ace_there_is_nothing_to_choose(setting):
    with pytest.raises(NothingToStudyError, match="no calibrated pipeline has an ACE"):
        run_reliability(with_ace(setting, {"identity(single)": 0.1}))


def test_the_panel_has_all_tasks_and_the_rule(texts):
    curve = BinnedCurve([10, 90], [0.5, 0.8], [0.4, 0.9], 0.77, 0.85)
    role = ChosenCurves("ts", "order", Estimate(0.02, 0.02, 0.02), curve, [curve])
    panel = panel_figure(ReliabilityData(15, "The rule.", {"a": {"best": role}, "b": {"best": role}, "c": {}}))
    assert {"ts (2.0 %)", "The rule.", "a", "b"} <= set(texts(panel.draw()))
    assert not panel.on_page
