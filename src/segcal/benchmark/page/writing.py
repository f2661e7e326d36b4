"""Write the report of a folder of results: one page, and its figures as files if they are asked for."""

from functools import partial
from pathlib import Path
from typing import Any

from segcal.atomic import write_text
from segcal.benchmark.job import CALIBRATORS
from segcal.benchmark.page.document import make_document, read_studies
from segcal.benchmark.pipelines import Pipeline
from segcal.benchmark.units import Unit
from segcal.errors import InputError, SegcalError
from segcal.fitting.artifact import load
from segcal.report.figures.base import SVG_SIGNATURE
from segcal.report.figures.base import Drawn
from segcal.studies import read_outcomes
from segcal.studies.figures import result_figures
from segcal.report.page import PAGE_SIGNATURE, write_page
from segcal.target import check_file

PAGE = "report.html"
NO_FIGURES = "Figures of the studies are left out: install them with pip install 'segcal[report]'."


def write_report(
    folder: str | Path, path: str | Path | None = None, figures: str | Path | None = None, overwrite: bool = False
) -> Path:
    """Write the report of a folder of results and return its path.

    Args:
        folder: written by `segcal benchmark` or `segcal demo`.
        path: of the page; ``report.html`` in the folder if None.
        figures: a folder for the figures as SVG files, or None.
        overwrite: replace files that are no report and no figures of ours; never those of the results.
    """
    place = Path(folder)
    page = place / PAGE if path is None else Path(path)
    check_file(page, PAGE_SIGNATURE, place.rglob("*.json*"), overwrite)
    document = make_document(place)
    shown: list[dict[str, str]] = []
    try:
        drawn = make_figures(place, document)
        shown = [{"name": each.name, "task": each.task, "title": each.title, "text": each.text, "svg": each.svg} for each in drawn if each.on_page]
        for each in () if figures is None else drawn:
            target = Path(figures) / f"{each.name}.svg"  # type: ignore[arg-type]
            target.parent.mkdir(parents=True, exist_ok=True)
            check_file(target, SVG_SIGNATURE, (), overwrite)
            write_text(target, each.svg)
    except InputError as missing:
        if figures is not None or "matplotlib" not in str(missing):
            raise
        document["notes"].append(NO_FIGURES)
    return write_page(page, document, shown)


def make_figures(folder: Path, document: dict[str, Any]) -> list[Drawn]:
    """Return all figures of a folder of results."""
    from types import SimpleNamespace as N

    places = {place["task"]: place for place in document["places"] if not place["test_on"]}
    sections = {}
    for task, place in places.items():
        own = N(**place)
        own.curves = {title: N(**({"foreground": None} | one)) for title, one in place["curves"].items()}
        own.bands = {title: [N(start=band["from"]) for band in one] for title, one in place["bands"].items()}
        own.rows = [N(**row) for row in place["rows"]]
        own.cases = N(**place["cases"])
        sections[task] = own
    return result_figures(read_outcomes(folder), sections, folder)
