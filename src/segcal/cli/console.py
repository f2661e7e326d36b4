"""How commands speak: results on stdout, everything else on stderr, one JSON document if asked for one."""

import json
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from segcal.cases.base import CaseError

DONE, USER_ERROR, SOME_FAILED, INTERRUPTED = 0, 2, 3, 130
# A table in a pipe is not squeezed into 80 columns.
PIPE_WIDTH = 140


class Output:
    """Where a command writes.

    Args:
        as_json: print one JSON document on stdout and nothing else there.
    """

    def __init__(self, as_json: bool) -> None:
        self._json = as_json
        self._out = Console(width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False)
        self._err = Console(stderr=True, highlight=False)

    def say(self, *texts: Any) -> None:
        """Print for a person; silent with JSON."""
        if not self._json:
            for text in texts:
                self._out.print(text, markup=False) if isinstance(text, str) else self._out.print(text)

    def document(self, data: dict[str, Any]) -> None:
        """Print the JSON document, if it was asked for."""
        if self._json:
            json.dump(data, sys.stdout, indent=1, ensure_ascii=False, allow_nan=False)
            sys.stdout.write("\n")

    def warn(self, text: str) -> None:
        """Print a warning."""
        self._err.print(f"warning: {text}", markup=False, soft_wrap=True)

    def finish(self, failures: Sequence[CaseError]) -> int:
        """List the cases that failed and return the exit code."""
        if not failures:
            return DONE
        self._err.print(f"{len(failures)} cases failed:", markup=False)
        for failure in failures:
            self._err.print(f"  {failure.case_id}: {failure.reason}", markup=False, soft_wrap=True)
        return SOME_FAILED


class Bar:
    """A progress bar over cases, on a terminal only.

    Args:
        title: what is being done.
        total: how many cases there are.
    """

    def __init__(self, title: str, total: int) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._bar = Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())
        self._task = self._bar.add_task(title, total=total)

    def step(self, _: object = None) -> None:
        """Count one case."""
        self._bar.advance(self._task)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bar.stop()


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Return a plain table; the first column is text, the others are numbers."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for number, heading in enumerate(headings):
        made.add_column(heading, justify="right" if number else "left")
    for row in rows:
        made.add_row(*row)
    return made
