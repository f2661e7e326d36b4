"""What finding mispredictions would be worth: calibration error by the share found (selective scaling, its Fig. 4)."""

from collections.abc import Mapping, Sequence
from typing import Any

from segcal.report.figures.base import COLOURS, DASHES, MARKERS, new_figure, shorten, styled


@styled
def detection_figure(found: Mapping[str, Any], rates: Sequence[float]) -> Any:
    """Return the curves of an oracle, and learned selectors where they stand.

    Args:
        found: `oracle` (by calibrator, one error a rate) and `learned` (by pipeline, recall and error) of a task.
        rates: the shares of mispredictions that the oracle finds.
    """
    figure, axes = new_figure(1, 1, 6.4, 3.8)
    axis = axes[0, 0]
    share = [100 * rate for rate in rates]
    for number, (title, errors) in enumerate(found["oracle"].items()):
        style = {"color": COLOURS[number % 8], "linestyle": DASHES[number % 8], "marker": MARKERS[number % 8]}
        axis.plot(share, [100 * error for error in errors], label=f"{shorten(title, 28)}, oracle", **style)
    for number, (title, one) in enumerate(found["learned"].items()):
        if one["recall"] is not None and one["ece"] is not None:
            label = f"{shorten(title, 34)}, learned"
            axis.plot(
                [100 * one["recall"]], [100 * one["ece"]], "k", marker="*X"[number % 2], linestyle="", label=label
            )
    axis.set(xlim=(0, 100), ylim=(0, None), xlabel="mispredicted voxels found, %", ylabel="calibration error in %")
    figure.legend(loc="outside lower center", ncols=2, fontsize=8)
    return figure
