"""Calibration error against Dice, one dot a case: does a good mask come with honest confidence?"""

from collections.abc import Mapping, Sequence
from typing import Any

from segcal.report.figures.base import COLOURS, MARKERS, new_figure, shorten, styled


@styled
def scatter_figure(stages: Mapping[str, Sequence[tuple[float | None, float | None]]], title: str = "") -> Any:
    """Return the scatter of several stages on one pair of axes; cases without a value are left out.

    Args:
        stages: by what the legend says ("before", "after"), Dice and calibration error of each case.
        title: above it.
    """
    figure, axes = new_figure(1, 1, 4.8, 3.6)
    axis = axes[0, 0]
    for number, (label, pairs) in enumerate(stages.items()):
        known = [(dice, 100 * error) for dice, error in pairs if dice is not None and error is not None]
        style = {"c": COLOURS[number % 8], "marker": MARKERS[number % 8]}
        axis.scatter([x for x, _ in known], [y for _, y in known], s=18, alpha=0.8, label=shorten(label), **style)
    axis.set(xlim=(0, 1), ylim=(0, None), xlabel="Dice", ylabel="calibration error in %", title=shorten(title, 60))
    axis.legend()
    return figure
