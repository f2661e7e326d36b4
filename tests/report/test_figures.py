"""Figures: the same bytes every time, what is drawn, and what conic scaling has learned."""

import sys

import numpy as np
import pytest
import torch

from segcal import make_calibrator
from segcal.calibrators.conic import Conic
from segcal.errors import InputError
from segcal.report import figures
from segcal.report.figures import reliability_figure, show_classes, show_image, to_svg
from segcal.report.images import encode_indices, encode_jpeg, encode_values

CURVE = {
    "count": [0, 10, 100], "confidence": [None, 0.5, 0.9], "accuracy": [None, 0.4, 0.8], "low": [None, 0.3, 0.7],
    "high": [None, 0.5, 0.9],
}  # fmt: skip


@figures.styled()
def drawn(title):
    figure, axes = figures.new_figure(1, 1, 2, 2)
    axes[0, 0].set_title(title)
    return figure


def test_a_name_is_text_whatever_it_holds_and_long_ones_are_cut(texts, nasty):
    assert "<b>\"$x_1$\" & 'y'" in "".join(texts(drawn(figures.shorten(nasty, 40))))
    assert figures.shorten("a\u202eb\nc") == "abc"
    assert len(figures.shorten("x" * 300)) == 36


def test_the_same_figure_is_the_same_bytes_and_a_user_s_settings_stay(picture):
    import matplotlib

    def once():
        figure = drawn("a")
        show_image(figure.axes[0], picture, (1, 1))
        return to_svg(figure)

    before = matplotlib.rcParams["font.size"], matplotlib.rcParams["text.parse_math"]
    assert once() == once()
    assert (matplotlib.rcParams["font.size"], matplotlib.rcParams["text.parse_math"]) == before


def test_the_background_and_what_does_not_count_stay_clear():
    figure = drawn("a")
    show_classes(figure.axes[0], encode_indices(np.array([[0, 1, -1]])), background=True, alpha=0.5)
    (layer,) = (image.get_array() for image in figure.axes[0].images)
    assert layer[0, :, 3].tolist() == [0.0, 0.5, 0.0]


def test_pictures_keep_their_place_large_ones_smaller_scans_from_dark_to_bright_and_none_grey():
    large = encode_jpeg(np.zeros((1, 400, 1000), np.uint8))
    scan = encode_values(np.array([[-500.0, 200.0, 900.0]]))
    shown = []
    for encoded in (large, scan, None):
        figure = drawn("a")
        show_image(figure.axes[0], encoded, (7, 4, 6))
        shown += figure.axes[0].images
    assert max(shown[0].get_array().shape) == 160
    assert shown[0].get_extent() == [-0.5, 999.5, 399.5, -0.5]
    assert np.allclose(shown[1].get_array(), [[0, 128, 255]], atol=1)
    assert shown[2].get_array().shape == (4, 6)


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match=r"matplotlib is not installed, but figures need it.*'segcal\[report\]'"):
        drawn("a")


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
    (bars,) = reliability_figure({"a": CURVE}).axes[0].collections
    assert np.allclose([segment[:, 1] for segment in bars.get_segments()], [[0.3, 0.5], [0.7, 0.9]])
    bare = {key: CURVE[key] for key in ("count", "confidence", "accuracy")}
    assert not reliability_figure({"a": bare}).axes[0].collections


@pytest.fixture
def learned():
    """Half the slope where few neighbours have the voxel's class, and twice it where all do."""
    calibrator = Conic(3, contexts=["share_far"], ramps=1, hats=2)
    calibrator.hat_knots.copy_(torch.tensor([0.2, 1.0]))
    calibrator.set_theta(torch.tensor([[0.5, 0.0, 1.5]]))
    return calibrator


def test_confidence_curves_are_those_of_the_definition(learned):
    slopes = {"low": 0.5, "in the middle": 1.25, "high": 2.0}
    found = list(figures.confidence_curves(learned))
    assert [level for _, level, _, _ in found] == list(slopes)
    for _, level, before, after in found:
        np.testing.assert_allclose(after, torch.sigmoid(slopes[level] * torch.logit(before)), atol=1e-6)
    ((_, _, before, after),) = figures.confidence_curves(make_calibrator("conic", 4))  # without contexts
    np.testing.assert_allclose(after, before, atol=1e-9)


def test_the_figure_names_the_context_and_its_levels(learned):
    text = to_svg(figures.confidence_figure(learned))
    assert "share of its class around, 25 x 25" in text
    assert all(level in text for level in figures.LEVELS)
    (figure,) = figures.page_figures(learned)
    assert figure.svg == text
    assert figures.page_figures(make_calibrator("ts", 3)) == figures.page_figures(None) == []
