"""Make what lists the code: tables of the members of a registry, and the page of commands. ``make listings`` runs it.

A table stands in a page after ``<!-- table: NAME -->`` and reaches to the next empty line.
"""

import inspect
import re
from collections.abc import Callable
from pathlib import Path

from segcal.calibrators import CALIBRATORS, make_calibrator
from segcal.cases.formats import FORMATS
from segcal.losses import LOSSES, Loss
from segcal.metrics import METRICS

DOCS = Path(__file__).parent
MARK = re.compile(r"(<!-- table: (\w+) -->\n)(?:\|.*\n)*")


def calibrators_table() -> str:
    """Return the calibrators: promises, and fitted / identifiable parameters for the classes of the paper's tasks."""
    counts = (2, 20)
    rows = []
    for name in CALIBRATORS:
        sizes = [make_calibrator(name, count).as_fitted() for count in counts]
        first = sizes[0]
        rows.append(
            (
                f"`{name}`",
                "yes" if first.translation_invariant else "no",
                first.preserves or "nothing",
                "yes" if first.pointwise else "no",
                first.fitted_by,
                *(f"{each.num_parameters():,} / {each.num_identifiable():,}" for each in sizes),
            )
        )
    head = ("name", "offset-free", "keeps", "voxel by voxel", "fitted by", *(f"C = {count}" for count in counts))
    return _table(head, rows)


def metrics_table() -> str:
    """Return the metrics with their facts."""
    rows = [
        (
            f"`{name}`",
            metric.title,
            (metric.unit or "number").replace("fraction", ""),
            metric.better or "neither",
            "pooled" if metric.pooled else "",
            str(metric.bins or ""),
        )
        for name, metric in METRICS.items()
    ]
    return _table(("name", "title", "unit", "better", "pooled", "bins"), rows)


def losses_table() -> str:
    """Return the losses with the options that they do not have in common."""
    common = inspect.signature(Loss).parameters
    rows = []
    for name, loss in LOSSES.items():
        own = [option for option in inspect.signature(loss).parameters.values() if option.name not in common]
        options = ", ".join(f"`{option.name}` ({_shown(option.default)})" for option in own)
        rows.append((f"`{name}`", loss.formula, options))
    return _table(("name", "per voxel", "options (defaults)"), rows)


def formats_table() -> str:
    """Return the formats of scores."""
    return _table(
        ("`format`", "files of a case", "notes"), [(f"`{name}`", *one.documented) for name, one in FORMATS.items()]
    )


def studies_table() -> str:
    """Return the studies of a benchmark."""
    from segcal.studies import STUDIES

    rows = [
        (f"`{name}`", study.shows, study.needs, study.costs, "yes" if study.usual else "no")
        for name, study in STUDIES.items()
    ]
    return _table(("study", "shows", "needs", "takes", "runs unless `studies` says otherwise"), rows)


TABLES: dict[str, Callable[[], str]] = {
    "calibrators": calibrators_table,
    "metrics": metrics_table,
    "losses": losses_table,
    "formats": formats_table,
    "studies": studies_table,
}


def renewed(page: str) -> str:
    """Return a page with its tables made anew."""
    return MARK.sub(lambda found: found[1] + TABLES[found[2]](), page)


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    cells = [[cell.replace("|", r"\|") for cell in row] for row in rows]
    lines = [f"| {' | '.join(row)} |".replace("|  |", "| |").replace("|  |", "| |") for row in (head, *cells)]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]]) + "\n"


def _shown(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    return f"`{value}`" if isinstance(value, str) else f"{value:g}"


if __name__ == "__main__":
    from commands import write_page  # beside this file

    write_page()
    for path in sorted(DOCS.glob("*.md")):
        path.write_text(renewed(path.read_text("utf-8")), "utf-8")
