"""Maps of a local temperature: what a calibrator that looks around divides the logits of each voxel by."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from segcal.report.figures.base import CONFIDENCE_MAP, new_figure, shorten, show_picture, styled
from segcal.report.pictures import decode_map


@styled
def temperature_figure(cases: Sequence[Mapping[str, Any]]) -> Any:
    """Return the image and the temperature of some cases, all temperatures on one logarithmic scale.

    Args:
        cases: `case`, `image` (or None) and `temperature`.
    """
    from matplotlib.colors import LogNorm

    maps = [decode_map(one["temperature"]) for one in cases]
    low, high = min(float(each.min()) for each in maps), max(float(each.max()) for each in maps)
    norm = LogNorm(max(low, 1e-3), max(high, low * 1.001, 1e-3 * 1.001))
    figure, axes = new_figure(2, len(cases), 3 * len(cases) + 0.5, 5.4)
    for column, (one, values) in enumerate(zip(cases, maps, strict=True)):
        show_picture(axes[0, column], one.get("image"), values.shape)
        axes[0, column].set_title(shorten(one["case"], 28))
        drawn = axes[1, column].imshow(np.maximum(values, 1e-3), cmap=CONFIDENCE_MAP, norm=norm)
        axes[1, column].set_axis_off()
    figure.colorbar(drawn, ax=axes[1, :].tolist(), shrink=0.8, label="temperature: above 1 is softened")
    return figure
