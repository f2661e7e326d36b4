"""Where a calibrator changes the mask, and how far from a boundary (Fig. 4)."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from segcal.report.figures.base import COLOURS, new_figure, shorten, show_classes, show_picture, styled
from segcal.report.pictures import decode_map

KINDS = {"harmful": "right to wrong", "beneficial": "wrong to right", "neutral": "wrong to wrong"}


@styled
def flip_figure(found: Mapping[str, Any], background: bool = True) -> Any:
    """Return input, truth and flipped voxels of one case, and flips by distance from the boundary of the truth.

    Args:
        found: `pipeline`, `curve` and `example` of a task, as the study of flips keeps them under "closer".
        background: whether class 0 is what is left over.
    """
    example, curve = found["example"], found["curve"]
    figure, axes = new_figure(1, 4, 12.5, 3.1, width_ratios=[1, 1, 1, 1.25])
    flipped = decode_map(example["flipped"]) == 1
    for axis in axes[0, :3]:
        show_picture(axis, example.get("image"), flipped.shape)
    show_classes(axes[0, 1], example["labels"], background, 0.55)
    layer = np.zeros((*flipped.shape, 4))
    layer[flipped] = (0.835, 0.369, 0.0, 1.0)
    axes[0, 2].imshow(layer)
    titles = (shorten(example["case"], 26), "truth", f"{example['flips']:,} voxels that changed their class")
    for axis, title in zip(axes[0], titles, strict=False):
        axis.set_title(title)
    _distances(axes[0, 3], curve, found["pipeline"])
    return figure


def _distances(axis: Any, curve: Mapping[str, Any], pipeline: str) -> None:
    voxels = np.maximum(np.array(curve["voxels"], float), 1)
    bottom = np.zeros(len(voxels))
    for number, (kind, label) in enumerate(KINDS.items()):
        share = 100 * np.array(curve[kind], float) / voxels
        axis.bar(curve["distance"], share, 0.9, bottom=bottom, color=COLOURS[(0, 1, 6)[number]], label=label)
        bottom += share
    axis.set(
        title=f"{shorten(pipeline, 30)}, {'all cases'}", xlabel="voxels from the boundary", ylabel="% of voxels changed"
    )
    axis.legend(fontsize=8)
