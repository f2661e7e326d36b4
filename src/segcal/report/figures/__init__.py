"""Figures as vector graphics, each a function from plain data to a matplotlib figure; usable without the page.

>>> from segcal.report.figures import reliability_figure, to_svg  # doctest: +SKIP
>>> Path("reliability.svg").write_text(to_svg(reliability_figure(curves)))  # doctest: +SKIP
"""

from segcal.report.figures.base import to_svg
from segcal.report.figures.corruptions import corruption_figure
from segcal.report.figures.detection import detection_figure
from segcal.report.figures.energy import energy_figure
from segcal.report.figures.flips import flip_figure
from segcal.report.figures.overlays import overlay_figure
from segcal.report.figures.regions import region_figure
from segcal.report.figures.reliability import reliability_figure, reliability_panel
from segcal.report.figures.scatter import scatter_figure
from segcal.report.figures.shift import shift_figure
from segcal.report.figures.study_curves import binning_figure, size_figure
from segcal.report.figures.temperature import temperature_figure

__all__ = [
    "binning_figure",
    "corruption_figure",
    "detection_figure",
    "energy_figure",
    "flip_figure",
    "overlay_figure",
    "region_figure",
    "reliability_figure",
    "reliability_panel",
    "scatter_figure",
    "shift_figure",
    "size_figure",
    "temperature_figure",
    "to_svg",
]
