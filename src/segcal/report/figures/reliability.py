"""Reliability diagrams: confidence against accuracy, before and after on one pair of axes (Fig. 8)."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from msgspec import to_builtins

from segcal.report.document import CurveLists
from segcal.report.figures.base import COLOURS, DASHES, MARKERS, new_figure, shorten, styled

# Count, confidence and accuracy (None in empty bins), and low and high where there are intervals.
CurveData: TypeAlias = CurveLists | Mapping[str, Sequence[float | None]]


@styled
def reliability_figure(curves: Mapping[str, CurveData], title: str = "", what: str = "right") -> Any:
    """Return a diagram of several curves with their counts below, on scales that are always the same.

    The title says which voxels and how many bins; `what` is "right" for the predicted class, "this class" for one.
    """
    figure, axes = new_figure(2, 1, 4.6, 5.4, height_ratios=[4, 1], sharex=True)
    _draw(axes[0, 0], axes[1, 0], curves)
    axes[0, 0].set(title=shorten(title, 70), ylabel=f"share that is {what}")
    axes[1, 0].set(xlabel="confidence", ylabel="voxels")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center")
    return figure


@styled
def reliability_panel(tasks: Mapping[str, Mapping[str, CurveData]], rule: str = "") -> Any:
    """Return one diagram per task beside each other, with the rule below by which their curves were chosen."""
    figure, axes = new_figure(2, len(tasks), 4.2 * len(tasks), 5.2, height_ratios=[4, 1], sharex=True)
    for column, (name, curves) in enumerate(tasks.items()):
        _draw(axes[0, column], axes[1, column], curves)
        axes[0, column].set(title=shorten(name), ylabel="share that is right")
        axes[0, column].legend(loc="upper left", fontsize=7.5)
        axes[1, column].set(xlabel="confidence", ylabel="voxels")
    if rule:
        figure.supxlabel("\n".join(textwrap.wrap(rule, 55 * len(tasks))), fontsize=7.5, color="#55626f")
    return figure


def _draw(upper: Any, lower: Any, curves: Mapping[str, CurveData]) -> None:
    upper.plot([0, 1], [0, 1], color="#8a939c", linestyle=(0, (4, 3)), linewidth=1)
    for number, (label, given) in enumerate(curves.items()):
        curve = to_builtins(given)
        style = {"color": COLOURS[number % 8], "linestyle": DASHES[number % 8], "marker": MARKERS[number % 8]}
        x, y, count = (np.array(curve[key], float) for key in ("confidence", "accuracy", "count"))
        filled = np.isfinite(x)
        upper.plot(x[filled], y[filled], label=shorten(label, 44), **style)
        if curve.get("low") is not None:
            low, high = (np.array(curve[key], float)[filled] for key in ("low", "high"))
            upper.vlines(x[filled], low, high, color=style["color"], linewidth=1)
        width = 1 / len(count)
        each = 0.8 * width / len(curves)
        left = (np.arange(len(count)) + 0.1) * width + number * each
        lower.bar(left[filled], count[filled], each, align="edge", color=style["color"])
    upper.set(xlim=(0, 1), ylim=(0, 1))
    lower.set(yscale="log", ylim=(0.8, None))
    lower.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    lower.yaxis.set_minor_formatter(lambda value, _: "")
