"""Where the calibration error lies: box plots over cases, by region (selective scaling, its Fig. 5)."""

from collections.abc import Mapping, Sequence
from typing import Any

from segcal.report.figures.base import COLOURS, new_figure, shorten, styled

TITLES = {
    "all": "all voxels", "right": "right predictions", "wrong": "wrong predictions", "boundary": "near a boundary",
    "interior": "elsewhere",
}  # fmt: skip
MOST_BOXES = 8


@styled
def region_figure(pipelines: Mapping[str, Mapping[str, Any]], shown: Sequence[str] | None = None) -> Any:
    """Return one group of boxes a region, one box a pipeline: quartiles, whiskers, outliers.

    Args:
        pipelines: by title, the numbers of boxes by region under "ece", as the study of regions keeps them.
        shown: which pipelines; the first ones if None.
    """
    from matplotlib.patches import Patch

    kept = [title for title in (shown or pipelines) if title in pipelines][:MOST_BOXES]
    figure, axes = new_figure(1, 1, 9, 3.6)
    axis = axes[0, 0]
    width = 0.8 / max(len(kept), 1)
    for number, title in enumerate(kept):
        colour = COLOURS[number % 8]
        boxes = [(place, pipelines[title]["ece"].get(region)) for place, region in enumerate(TITLES)]
        known = [
            (place + (number + 0.5) * width - 0.4, one) for place, one in boxes if one and one["median"] is not None
        ]
        axis.bxp(
            [_box(one) for _, one in known],
            positions=[place for place, _ in known],
            widths=0.8 * width,
            patch_artist=True,
            boxprops={"facecolor": colour, "alpha": 0.55, "edgecolor": colour},
            medianprops={"color": "black"},
            flierprops={"marker": ".", "markersize": 3, "markerfacecolor": colour, "markeredgecolor": colour},
        )
    axis.set(xticks=range(len(TITLES)), ylabel="calibration error in %", ylim=(0, None))
    axis.set_xticklabels(TITLES.values())
    patches = [Patch(color=COLOURS[k % 8], alpha=0.55, label=shorten(title, 30)) for k, title in enumerate(kept)]
    figure.legend(handles=patches, loc="outside lower center", ncols=4, fontsize=8)
    return figure


def _box(one: Mapping[str, Any]) -> dict[str, Any]:
    names = {"whislo": "low", "q1": "lower_quartile", "med": "median", "q3": "upper_quartile", "whishi": "high"}
    return {key: 100 * one[name] for key, name in names.items()} | {
        "fliers": [100 * value for value in one["outliers"]]
    }
