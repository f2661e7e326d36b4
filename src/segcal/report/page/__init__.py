"""One HTML file that shows a document of results: no network, no other file, nothing to install."""

from segcal.report.page.render import PAGE_SIGNATURE, PageFigure, render_page, write_page

__all__ = ["PAGE_SIGNATURE", "PageFigure", "render_page", "write_page"]
