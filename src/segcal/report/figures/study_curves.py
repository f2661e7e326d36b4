"""Curves of two studies: the number of calibration cases (Fig. 5) and the number of bins (Fig. 6)."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from segcal.report.figures.base import COLOURS, DASHES, MARKERS, new_figure, shorten, styled

TITLES = {"nll": "NLL", "ece": "ECE", "ba_ece": "BA-ECE", "ace": "ACE"}
MOST_LINES = 8


@styled
def size_figure(found: Mapping[str, Any]) -> Any:
    """Return the change of each metric against the usual number of calibration cases, with bands of its intervals.

    Args:
        found: `reference`, `sizes` and `pipelines` of a task, as the study of calibration-set sizes keeps them.
    """
    metrics = [name for name in TITLES if any(name in curves for curves in found["pipelines"].values())]
    figure, axes = new_figure(1, len(metrics), 3.2 * len(metrics), 3.2)
    for axis, metric in zip(axes[0], metrics, strict=True):
        axis.axhline(0, color="#8a939c", linewidth=1)
        for number, (title, curves) in enumerate(list(found["pipelines"].items())[:MOST_LINES]):
            points = [(each["n"], each["change"]) for each in curves.get(metric, [])]
            _band(axis, [n for n, _ in points], [change for _, change in points], number, title)
        axis.set(title=TITLES[metric], xlabel="calibration cases")
    axes[0, 0].set_ylabel(f"change against n = {found['reference']}")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=8)
    return figure


@styled
def binning_figure(found: Mapping[str, Any], shown: Sequence[str] | None = None) -> Any:
    """Return ECE and ACE by the number of bins, with their intervals.

    Args:
        found: `pipelines` of a task, as the study of binning keeps them.
        shown: which pipelines; the first ones if None.
    """
    kept = [title for title in (shown or found["pipelines"]) if title in found["pipelines"]][:MOST_LINES]
    figure, axes = new_figure(1, 2, 9, 3.4)
    for axis, metric in zip(axes[0], ("ece", "ace"), strict=True):
        for number, title in enumerate(kept):
            by_bins = found["pipelines"][title][metric]
            _band(axis, [int(bins) for bins in by_bins], list(by_bins.values()), number, title)
        axis.set(title=TITLES[metric], xlabel="number of bins", ylim=(0, None))
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=8)
    return figure


def _band(axis: Any, places: Sequence[int], estimates: Sequence[Mapping[str, Any]], number: int, title: str) -> None:
    value, low, high = (np.array([each[key] for each in estimates], float) for key in ("value", "low", "high"))
    style = {"color": COLOURS[number % 8], "linestyle": DASHES[number % 8], "marker": MARKERS[number % 8]}
    axis.plot(places, value, label=shorten(title, 30), **style)
    axis.fill_between(places, low, high, color=style["color"], alpha=0.12, linewidth=0)
