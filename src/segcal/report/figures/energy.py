"""Maps of the free energy of the pooled logits (Fig. 1b, 3): the level of raw scores, unseen by the softmax."""

from collections.abc import Mapping
from typing import Any

from segcal.report.figures.base import CONFIDENCE_MAP, new_figure, shorten, show_picture, styled
from segcal.report.pictures import decode_map


@styled
def energy_figure(examples: Mapping[str, Mapping[str, Any]]) -> Any:
    """Return the image and the map of one case a task; every map has its own scale, drawn beside it.

    Args:
        examples: by task, `case`, `free_energy` and `image` (or None), as the study of offsets keeps them.
    """
    figure, axes = new_figure(len(examples), 2, 7.6, 2.9 * len(examples))
    for row, (task, one) in enumerate(examples.items()):
        values = decode_map(one["free_energy"])
        show_picture(axes[row, 0], one.get("image"), values.shape)
        axes[row, 0].set_title(f"{shorten(task, 20)}: {shorten(one['case'], 20)}")
        drawn = axes[row, 1].imshow(values, cmap=CONFIDENCE_MAP)
        axes[row, 1].set_axis_off()
        figure.colorbar(drawn, ax=axes[row, 1], shrink=0.8, label="free energy in nats")
    return figure
