import sys

import numpy as np
import pytest

from segcal.errors import InputError
from segcal.report.figures import (
    new_figure,
    reliability_figure,
    reliability_panel,
    shorten,
    show_classes,
    show_picture,
    styled,
    to_svg,
)
from segcal.report.pictures import encode_indices, encode_jpeg


@styled()
def drawn(title):
    figure, axes = new_figure(1, 1, 2, 2)
    axes[0, 0].set_title(title)
    return figure


def test_a_name_is_text_whatever_it_holds(texts, nasty):
    assert "<b>\"$x_1$\" & 'y'" in "".join(texts(drawn(shorten(nasty, 40))))


def test_the_same_figure_is_the_same_bytes(picture):
    def once():
        figure = drawn("a")
        show_picture(figure.axes[0], picture, (1, 1))
        return to_svg(figure)

    assert once() == once()


def test_a_user_s_settings_are_left_as_they_were():
    import matplotlib

    before = matplotlib.rcParams["font.size"], matplotlib.rcParams["text.parse_math"]
    drawn("a")
    assert (matplotlib.rcParams["font.size"], matplotlib.rcParams["text.parse_math"]) == before


def test_long_names_are_cut_and_marks_of_direction_are_dropped():
    assert shorten("a\u202eb\nc") == "abc"
    assert len(shorten("x" * 300)) == 36


def test_the_background_and_what_does_not_count_stay_clear():
    figure = drawn("a")
    show_classes(figure.axes[0], encode_indices(np.array([[0, 1, -1]])), background=True, alpha=0.5)
    (layer,) = (image.get_array() for image in figure.axes[0].images)
    assert layer[0, :, 3].tolist() == [0.0, 0.5, 0.0]


def test_a_large_picture_is_made_smaller_and_keeps_its_place():
    figure = drawn("a")
    show_picture(figure.axes[0], encode_jpeg(np.zeros((1, 400, 1000), np.uint8)), (1, 1))
    (image,) = figure.axes[0].images
    assert max(image.get_array().shape) == 160
    assert image.get_extent() == [-0.5, 999.5, 399.5, -0.5]


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match=r"matplotlib is not installed, but figures need it.*'segcal\[report\]'"):
        drawn("a")


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
