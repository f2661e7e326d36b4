"""The report of a benchmark: one page, and its figures as files if they are asked for.

``segcal benchmark`` and ``segcal demo`` pass on what they have just computed; ``segcal report`` reads a folder of
results once, and goes the same way.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct, convert

from segcal.atomic import write_text
from segcal.benchmark.results import read_results
from segcal.benchmark.summaries import summarise
from segcal.documents import parse_json
from segcal.errors import ArtifactError, InputError, SegcalError
from segcal.report.document import Document
from segcal.report.figures import SVG_SIGNATURE, to_svg
from segcal.report.page import PAGE_SIGNATURE, PageFigure, write_page
from segcal.studies import read_outcomes
from segcal.studies.document import make_document
from segcal.studies.figures import result_figures
from segcal.studies.run import Finished
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
    if not Path(folder).is_dir():
        raise InputError(
            f"{folder} is not a folder, but one of segcal benchmark or segcal demo is needed. Check the path."
        )
    page = Path(folder) / PAGE if path is None else Path(path)
    check_file(page, PAGE_SIGNATURE, Path(folder).rglob("*.json*"), overwrite)
    document, studies = read_document(folder)
    return _write(page, document, studies, Path(folder), figures, overwrite)


def write_page_of(finished: Finished, reduced: Sequence[str] = (), overwrite: bool = False) -> Path:
    """Write the page of a benchmark that has just run into its folder and return its path.

    `reduced` says what a demonstration did less of than everything; `overwrite` is that of :func:`write_report`.
    """
    results, summary = finished.setting.results, finished.setting.summary
    page = results.folder / PAGE
    check_file(page, PAGE_SIGNATURE, results.folder.rglob("*.json*"), overwrite)
    studies = {name: outcome.data for name, outcome in finished.studies.items()}
    document = make_document(results, summary, studies, reduced)
    return _write(page, document, studies, results.folder, None, overwrite)


def read_document(folder: str | Path) -> tuple[Document, dict[str, Struct]]:
    """Return the document of a folder of results, and the data of its studies by name."""
    try:
        results = read_results(folder)
        studies = read_outcomes(results.folder)
        return make_document(results, summarise(results), studies, _reduced(results.folder)), studies
    except SegcalError:  # says what is wrong already
        raise
    except (KeyError, TypeError, IndexError, ValueError, AttributeError) as error:
        raise ArtifactError(
            f"{folder} holds results that this segcal cannot read ({type(error).__name__}: {error}), but they must be "
            "as it writes them. Run the benchmark again."
        ) from None


def _write(
    page: Path,
    document: Document,
    studies: Mapping[str, Struct],
    folder: Path,
    figures: str | Path | None,
    overwrite: bool,
) -> Path:
    sections = {section.task: section for section in document.sections if not section.test_on}
    shown: list[PageFigure] = []
    try:
        drawn = result_figures(studies, sections, folder)
        for each in drawn:
            svg = to_svg(each.draw()) if each.on_page or figures is not None else ""
            if each.on_page:
                shown.append(PageFigure(each.name, each.task, each.title, each.text, svg))
            if figures is not None:
                target = Path(figures) / f"{each.name}.svg"
                target.parent.mkdir(parents=True, exist_ok=True)
                check_file(target, SVG_SIGNATURE, (), overwrite)
                write_text(target, svg)
    except InputError as missing:
        if figures is not None or "matplotlib" not in str(missing):
            raise
        document.notes.append(NO_FIGURES)
    return write_page(page, document, shown)


def _reduced(folder: Path) -> list[str]:
    """Return what the demonstration in a folder did less of than everything."""
    try:
        return convert(parse_json((folder / "verdict.json").read_text("utf-8"))["reduced"], list[str])
    except (OSError, ValueError, KeyError, TypeError):
        return []
