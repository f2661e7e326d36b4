"""Bins: the numbers of the benchmark against plain loops, changed places by hand, and which diagrams are chosen."""

from dataclasses import replace

import numpy as np
import pytest
from msgspec import structs

from segcal.studies.binning import (
    RULE,
    BinnedCurve,
    ChosenCurves,
    ReliabilityData,
    changed_pairs,
    choose_pipelines,
    panel_figure,
)
from segcal.summary import Estimate, ResultRow


def plain_gaps(confidence, right, bins):
    gaps, sizes = [], []
    for number in range(bins):
        inside = (confidence > number / bins) & (confidence <= (number + 1) / bins)
        if inside.any():
            gaps.append(abs(right[inside].mean() - confidence[inside].mean()))
            sizes.append(inside.sum())
    return np.array(gaps), np.array(sizes)


def outcomes(setting, repeat):
    """Confidence and correctness of each uncalibrated test case of a repeat."""
    for case in setting.split(setting.tasks[1], "mean_logits", repeat).test:
        probs = np.exp(case.logits.numpy().astype(float))
        probs /= probs.sum(0)
        yield probs.max(0).ravel(), (probs.argmax(0) == case.labels.numpy()).ravel()


def together(setting, repeat):
    return [np.concatenate(column) for column in zip(*outcomes(setting, repeat), strict=True)]


@pytest.mark.parametrize("bins", [15, 20, 50])
def test_ece_is_the_mean_over_cases_and_repeats_and_ace_of_all_voxels_of_a_repeat(setting, studied, bins):
    found = studied["binning"].tasks["plain"].pipelines["identity(mean_logits)"]
    means, repeats = [], []
    for repeat in (0, 1):
        pairs = [plain_gaps(*outcome, bins) for outcome in outcomes(setting, repeat)]
        means.append(np.mean([(gaps * sizes).sum() / sizes.sum() for gaps, sizes in pairs]))
        repeats.append(plain_gaps(*together(setting, repeat), bins)[0].mean())
    if bins > 15:
        ece = found["ece"][str(bins)]
        assert ece.value == pytest.approx(np.mean(means), abs=1e-6)
        assert ece.low < ece.value < ece.high
    if bins < 50:
        ace, expected = found["ace"][str(bins)], (np.mean(repeats), min(repeats), max(repeats))
        assert (ace.value, ace.low, ace.high) == pytest.approx(expected, abs=1e-6)


def numbers(ece, ace):
    def one(bins, values):
        return {str(n): Estimate(value, value, value) for n, value in zip(bins, values, strict=True)}

    return {"ece": one((20, 30, 40, 50), ece), "ace": one((15, 20, 30, 40), ace)}


def test_pairs_that_change_places_are_counted_against_the_reference(studied, tables):
    changed = changed_pairs(
        {"a": numbers([0.2] * 4, [0.2] * 4), "b": numbers([0.3, 0.3, 0.1, 0.3], [0.1, 0.3, 0.3, 0.1])}
    )
    assert changed["ece"] == {"20": 0, "30": 0, "40": 1, "50": 0}
    assert changed["ace"] == {"15": 0, "20": 1, "30": 1, "40": 0}
    text = tables("binning", studied["binning"])
    most = [max(counts.values()) for counts in studied["binning"].tasks["toy"].changed_pairs.values()]
    places = f"at most {most[0]} change places in ECE (against 50 bins) and {most[1]} in ACE (against 15)."
    assert f"toy: of 10 pairs of pipelines, {places}" in text
    heading = text.splitlines()[2]
    assert heading.count("ECE") == heading.count("ACE") == 4


def test_bins_are_drawn_for_the_pipelines_compared_first_and_undefined_ones_leave_a_gap(figures, texts):
    def estimate(value):
        return {"value": value, "low": value and value - 0.01, "high": value and value + 0.01}

    own = {
        "ece": {"20": estimate(0.1), "50": estimate(0.2)},
        "ace": {"15": estimate(None), "20": estimate(0.3)},
    }
    pipelines = {**{f"p{number}": own for number in range(8)}, "ts(mean_logits)": own}
    data = {"tasks": {"heart": {"pipelines": pipelines, "changed_pairs": {}}}, "reference_bins": {}}
    figure = figures("binning", data)["binning_heart"].draw()
    assert figure.axes[0].lines[0].get_xydata().tolist() == [[20, 0.1], [50, 0.2]]
    assert figure.axes[0].lines[0].get_label() == "ts(mean_logits)"
    assert {"p0", "p6"} <= set(texts(figure))
    assert "p7" not in texts(figure)
    assert figures("binning", {"tasks": {}, "reference_bins": {}}) == {}


def test_the_lowest_ace_wins_over_all_and_among_those_that_keep_the_order(setting):
    values = {
        "identity(single)": 0.01,
        "identity(mean_logits)": 0.02,
        "ts(mean_logits)": 0.3,
        "ms(mean_logits)": 0.2,
        "cms_ap(mean_logits)": 0.1,
    }
    rows = tuple(
        ResultRow("toy", "", title, {"ace": Estimate(value, value, value)}, converged=True)
        for title, value in values.items()
    )
    other = replace(setting, summary=structs.replace(setting.summary, results=rows))
    assert {role: each.title for role, each in choose_pipelines(other, "toy").items()} == {
        "single": "identity(single)",
        "uncalibrated": "identity(mean_logits)",
        "best": "cms_ap(mean_logits)",
        "best_order": "ts(mean_logits)",
    }


def test_curves_are_those_of_the_test_cases_of_all_repeats(setting, studied, tables):
    data = studied["reliability"]
    found = data.tasks["plain"]["uncalibrated"]
    confidence, right = (np.concatenate(both) for both in zip(together(setting, 0), together(setting, 1), strict=True))
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
    assert data.rule == RULE in tables("reliability", data)


def test_the_panel_has_all_tasks_and_the_rule(texts):
    curve = BinnedCurve([10, 90], [0.5, 0.8], [0.4, 0.9], 0.77, 0.85)
    role = ChosenCurves("ts", "order", Estimate(0.02, 0.02, 0.02), curve, [curve])
    panel = panel_figure(ReliabilityData(15, "The rule.", {"a": {"best": role}, "b": {"best": role}, "c": {}}))
    assert {"ts (2.0 %)", "The rule.", "a", "b"} <= set(texts(panel.draw()))
    assert not panel.on_page
