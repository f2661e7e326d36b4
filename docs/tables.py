"""Make the tables of the documentation that list the members of a registry: ``python docs/tables.py`` writes them anew.

A table stands in a page after ``<!-- table: NAME -->`` and reaches to the next empty line.
"""

import inspect
import re
from collections.abc import Callable
from pathlib import Path

from segcal.cases.formats import FORMATS
from segcal.losses import LOSSES, Loss

DOCS = Path(__file__).parent
MARK = re.compile(r"(<!-- table: (\w+) -->\n)(?:\|.*\n)*")


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


TABLES: dict[str, Callable[[], str]] = {"losses": losses_table, "formats": formats_table, "studies": studies_table}


def renewed(page: str) -> str:
    """Return a page with its tables made anew."""
    return MARK.sub(lambda found: found[1] + TABLES[found[2]](), page)


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *(tuple(cell.replace("|", r"\|") for cell in row) for row in rows)]
    return "".join(f"| {' | '.join(cells)} |\n".replace("|  |", "| |") for cells in lines)


def _shown(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    return f"`{value}`" if isinstance(value, str) else f"{value:g}"


if __name__ == "__main__":
    for path in sorted(DOCS.glob("*.md")):
        path.write_text(renewed(path.read_text("utf-8")), "utf-8")
