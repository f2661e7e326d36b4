import numpy as np

from segcal.report.figures.reliability import reliability_figure, reliability_panel

CURVE = {
    "count": [0, 10, 100],
    "confidence": [None, 0.5, 0.9],
    "accuracy": [None, 0.4, 0.8],
    "low": [None, 0.3, 0.7],
    "high": [None, 0.5, 0.9],
}


def test_points_are_the_filled_bins_on_scales_that_never_change(texts):
    figure = reliability_figure({"before": CURVE, "after": {**CURVE, "accuracy": [None, 0.5, 0.9]}}, "all voxels")
    upper, lower = figure.axes
    _, first, second = upper.lines
    assert first.get_xydata().tolist() == [[0.5, 0.4], [0.9, 0.8]]
    assert second.get_ydata().tolist() == [0.5, 0.9]
    assert (upper.get_xlim(), upper.get_ylim()) == ((0, 1), (0, 1))
    assert [bar.get_height() for bar in lower.patches] == [10, 100, 10, 100]
    found = texts(figure)
    assert {"before", "after", "all voxels", "confidence"} <= set(found)
    assert not any("mathdefault" in text for text in found)


def test_intervals_are_drawn_where_they_are_known():
    (bars,) = (each for each in reliability_figure({"a": CURVE}).axes[0].collections)
    assert np.allclose([segment[:, 1] for segment in bars.get_segments()], [[0.3, 0.5], [0.7, 0.9]])
    bare = {key: CURVE[key] for key in ("count", "confidence", "accuracy")}
    assert not reliability_figure({"a": bare}).axes[0].collections


def test_a_panel_has_one_diagram_a_task_and_its_rule(texts):
    figure = reliability_panel({"roads": {"a": CURVE}, "heart": {"b": CURVE}}, "Lowest ACE of all. " * 12)
    assert len(figure.axes) == 4
    assert {"roads", "heart"} <= set(texts(figure))
    assert "Lowest ACE" in " ".join(texts(figure))
