"""Rows for a board of results: one line of CSV per number of a benchmark, as it is printed.

Columns are those of ``docs/board`` in the repository, so that a file can be compared with it, or added to it, line by
line. They are task, method, metric, value, low, high, cases, repeats, note.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from segcal.documents import write_csv
from segcal.report.paper_tables import FLIPS, FOLDER, SHOWN
from segcal.summary import Summary
from segcal.target import check_file

COLUMNS = ("task", "method", "metric", "value", "low", "high", "cases", "repeats", "note")
FILE = "board.csv"


def board_rows(summary: Summary) -> Iterator[dict[str, str | int]]:
    """Yield every metric of every pipeline, on the task that it was fitted on or on another."""
    for row in summary.results:
        place = {"task": f"{row.task}, tested on {row.test_on}" if row.test_on else row.task, "method": row.pipeline}
        for metric, column in SHOWN.items():
            found = row.metrics.get(metric)
            kept = metric == FLIPS and summary.pipelines[row.pipeline].preserves is not None  # flips nothing
            if found is None or found.value is None or kept:
                continue
            ends = {"value": found.value, "low": found.low, "high": found.high}
            digits, unit = (1, ", %") if column.scale == 100 else (4, "")
            texts = {name: _printed(column.scale * end, digits) for name, end in ends.items() if end is not None}
            yield {**place, "metric": column.title + unit, **texts, "repeats": summary.repeats}
        if not row.converged:
            yield {**place, "metric": "fit", "note": "not fitted to its tolerance in some repeat"}


def _printed(number: float, digits: int) -> str:
    text = f"{number:.{digits}f}"
    return text.removeprefix("-") if float(text) == 0 else text


def write_board(summary: Summary, folder: str | Path, overwrite: bool = False) -> Path:
    """Write the rows of a summary into the tables of a folder of results and return their path."""
    path = Path(folder) / FOLDER / FILE
    check_file(path, re.compile(re.escape(",".join(COLUMNS)).encode()), (), overwrite)
    return write_csv(path, COLUMNS, board_rows(summary))
