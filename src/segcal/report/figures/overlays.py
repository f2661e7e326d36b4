"""Sample inputs with their truth laid over them (Fig. 2)."""

from collections.abc import Mapping, Sequence
from typing import Any

from segcal.report.figures.base import CLASS_COLOURS, new_figure, shorten, show_classes, show_picture, styled
from segcal.report.pictures import decode_map

MOST_NAMES = 20


@styled
def overlay_figure(
    cases: Sequence[Mapping[str, Any]], classes: Sequence[str], background: bool = True, alpha: float = 0.55
) -> Any:
    """Return inputs above, and the same with the truth over them below, one case a column.

    Args:
        cases: `case`, `image` (or None) and `truth`.
        classes: names of the classes.
        background: whether class 0 is what is left over.
        alpha: how strong the truth covers the input.
    """
    from matplotlib.patches import Patch

    figure, axes = new_figure(2, len(cases), 2.9 * len(cases), 5.4)
    for column, one in enumerate(cases):
        shape = decode_map(one["truth"]).shape
        for row in range(2):
            show_picture(axes[row, column], one.get("image"), shape)
        show_classes(axes[1, column], one["truth"], background, alpha)
        axes[0, column].set_title(shorten(one["case"], 30))
    first = 1 if background else 0
    named = list(enumerate(classes))[first:][:MOST_NAMES]
    patches = [
        Patch(color=CLASS_COLOURS[(k - first) % len(CLASS_COLOURS)], label=shorten(text, 20)) for k, text in named
    ]
    figure.legend(handles=patches, loc="outside lower center", ncols=min(len(patches), 6) or 1, fontsize=8)
    return figure
