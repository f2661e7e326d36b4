"""Figures of a folder of results: those of studies, those that the page draws itself, and shifts of a calibrator."""

from types import SimpleNamespace

import pytest
import torch

from segcal.calibrators import make_calibrator
from segcal.studies import STUDIES
from segcal.studies.figures import ORDER, result_figures, scatter_figure, shift_figure, study_figures
from segcal.studies.reliability import ReliabilityData

CURVE = {"count": [10, 90], "confidence": [0.4, 0.9], "accuracy": [0.5, 0.8], "low": [0.4, 0.7], "high": [0.6, 0.9]}
PARTS = SimpleNamespace(all=CURVE, foreground=CURVE, bands=[CURVE, CURVE], classes=[CURVE])


def section(**other):
    known = {
        "task": "heart",
        "baseline": "b",
        "chosen": "c",
        "background": True,
        "classes": ["x", "<y>$"],
        "shown_classes": [1],
        "curves": {"b": PARTS, "c": PARTS},
        "bands": {"b": [SimpleNamespace(start=0.0), SimpleNamespace(start=3.0)]},
        "cases": SimpleNamespace(dice={"b": [0.5], "c": [0.5]}, ece={"b": [0.1], "c": [None]}),
        "rows": [],
    }
    return SimpleNamespace(**(known | other))


def test_every_part_has_its_diagram_before_and_after_and_is_a_file_only(texts, tmp_path):
    found = {each.name: each for each in result_figures({}, {"heart": section()}, tmp_path)}
    parts = ("all", "foreground", "band0", "band1", "class0")
    assert set(found) == {*(f"before_after_heart_{part}" for part in parts), "scatter_heart"}
    assert not any(each.on_page for each in found.values())
    shown = texts(found["before_after_heart_class0"].draw())
    assert {"before", "after", "probability of class <y>$", "share that is this class"} <= set(shown)


def test_a_class_that_is_no_structure_has_no_foreground(tmp_path):
    names = [each.name for each in result_figures({}, {"heart": section(background=False)}, tmp_path)]
    assert "before_after_heart_all" in names
    assert "before_after_heart_foreground" not in names


def test_without_a_comparison_there_is_nothing_to_draw(tmp_path):
    assert result_figures({}, {"heart": section(baseline=None)}, tmp_path) == []
    assert study_figures({}, {"heart": section()}) == []


def test_the_order_of_the_page_is_of_studies_that_are_there_and_the_panel_is_a_file(tmp_path):
    assert set(ORDER) <= set(STUDIES)
    (panel,) = result_figures({"reliability": ReliabilityData(15, "", {})}, {}, tmp_path)
    assert (panel.name, panel.on_page) == ("reliability_panel", False)


def test_a_shift_is_drawn_for_calibrators_that_were_fitted(setting):
    rows = [
        SimpleNamespace(pipeline=f"{name}({pooling})", pooling=pooling, calibrator=name)
        for name, pooling in (("identity", "single"), ("ms", "mean_logits"), ("dc", "mean_logits"))
    ]
    for chosen, expected in (("dc(mean_logits)", ["shift_toy_ms"]), ("ms(mean_logits)", ["shift_toy_ms"])):
        toy = section(task="toy", rows=rows, baseline=None, chosen=chosen, classes=["a", "b", "c"])
        assert [each.name for each in result_figures({}, {"toy": toy}, setting.results.folder)] == expected


def heights(axis):
    return [bar.get_height() for bar in axis.patches]


def test_a_calibrator_that_ignores_the_shift_gives_one_answer(texts):
    figure = shift_figure(make_calibrator("ts", 3), "ts", ("a", "b", "c"))
    answers = heights(figure.axes[2])
    assert answers[:3] == pytest.approx(answers[3:], abs=1e-9)
    found = " ".join(texts(figure))
    assert "not the same" not in found
    assert "a" in texts(figure)


def test_one_that_sees_it_gives_two(texts):
    calibrator = make_calibrator("ms", 3)
    with torch.no_grad():
        for parameter in calibrator.parameters():
            if parameter.ndim > 1:
                parameter[..., 0, :] += 0.3
    figure = shift_figure(calibrator, "ms")
    answers = heights(figure.axes[2])
    assert max(abs(a - b) for a, b in zip(answers[:3], answers[3:], strict=True)) > 0.1
    assert heights(figure.axes[1])[:3] == heights(figure.axes[1])[3:]
    assert "not the same" in " ".join(texts(figure))


def test_of_many_classes_the_likeliest_are_shown():
    assert len(heights(shift_figure(make_calibrator("ts", 30)).axes[2])) == 16


def test_cases_without_a_value_are_left_out_and_scales_begin_at_zero(texts):
    figure = scatter_figure({"before": [(0.5, 0.1), (None, 0.2)], "after": [(0.5, 0.05)]}, "heart")
    axis = figure.axes[0]
    assert [each.get_offsets().tolist() for each in axis.collections] == [[[0.5, 10.0]], [[0.5, 5.0]]]
    assert axis.get_xlim() == (0, 1)
    assert axis.get_ylim()[0] == 0
    assert {"before", "after", "heart"} <= set(texts(figure))
