"""Figures as vector graphics, each a function from plain data to a matplotlib figure; usable without the page.

>>> from segcal.report.figures import reliability_figure, to_svg  # doctest: +SKIP
>>> Path("reliability.svg").write_text(to_svg(reliability_figure(curves)))  # doctest: +SKIP
"""

from segcal.report.figures.base import to_svg
from segcal.report.figures.reliability import reliability_figure, reliability_panel

__all__ = ["reliability_figure", "reliability_panel", "to_svg"]
