"""One picture, clean and in every corruption (Fig. 7)."""

from collections.abc import Mapping
from typing import Any

from segcal.report.figures.base import new_figure, show_picture, styled

TITLES = {
    "clean": "clean", "noise": "Gaussian noise", "blur": "Gaussian blur", "brightness": "brightness",
    "jpeg": "JPEG compression", "fog": "fog",
}  # fmt: skip


@styled
def corruption_figure(images: Mapping[str, Mapping[str, Any]]) -> Any:
    """Return the pictures in two rows.

    Args:
        images: by kind ("clean" and the corruptions), maps as the study of covariate shift keeps them.
    """
    columns = (len(images) + 1) // 2
    figure, axes = new_figure(2, columns, 3.1 * columns, 5.2)
    for axis in axes.flat:
        axis.set_axis_off()
    for axis, (kind, encoded) in zip(axes.flat, images.items(), strict=False):
        show_picture(axis, encoded, (1, 1))
        axis.set_title(TITLES.get(kind, kind))
    return figure
