"""One HTML file that shows a document of results: no network, no other file, nothing to install."""

from segcal.report.page.render import SCHEMA, render_page, write_page

__all__ = ["SCHEMA", "render_page", "write_page"]
