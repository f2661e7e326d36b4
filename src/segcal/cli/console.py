"""How commands speak: results on stdout, everything else on stderr, one JSON document if asked for one."""

import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from segcal.cases.base import CaseError
from segcal.documents import json_text
from segcal.errors import SuspicionWarning
from segcal.names import clean, clean_lines

DONE, USER_ERROR, SOME_FAILED, INTERRUPTED = 0, 2, 3, 130
# A table in a pipe is not squeezed into 80 columns.
PIPE_WIDTH = 140
# Arguments of the library that have the same name on the command line, with "-" for "_".
OPTIONS = (
    "kind", "pool", "format", "ignore", "class_axis", "key", "label_key", "label_axes", "images", "groups",
    "class_names", "class_pattern", "properties", "device", "workers", "overwrite",
)  # fmt: skip
_ARGUMENT = re.compile(rf"\b({'|'.join(OPTIONS)})=(?:'([^']*)'|(-?\d+)|True\b)?")


class _Console(Console):
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # the main program decides what it means


class Output:
    """Where a command writes.

    Args:
        as_json: print one JSON document on stdout and nothing else there.
    """

    def __init__(self, as_json: bool) -> None:
        self._json = as_json
        self._out = _Console(width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False)
        self.failures: list[CaseError] = []

    @property
    def width(self) -> int:
        """How many columns there are."""
        return self._out.width

    def say(self, *texts: Any) -> None:
        """Print for a person; silent with JSON."""
        for text in () if self._json else texts:
            if isinstance(text, str):
                # A sentence in a pipe is one line, whatever its length.
                self._out.print(clean_lines(text), markup=False, soft_wrap=not self._out.is_terminal)
            else:
                self._print(text)

    def _print(self, table: Any) -> None:
        with self._out.capture() as captured:
            self._out.print(table)
        lines = [line.rstrip() for line in captured.get().splitlines()]
        self._out.file.write("\n".join(lines) + "\n")

    def document(self, data: dict[str, Any]) -> None:
        """Print the JSON document, if it was asked for; the cases that failed are part of it."""
        if self._json:
            failed = {failure.case_id: in_options(failure.reason) for failure in self.failures}
            sys.stdout.write(json_text(data | {"failed": failed}, indent=1) + "\n")

    def warn(self, text: str) -> None:
        """Print a warning."""
        print(f"warning: {in_options(clean(text))}", file=sys.stderr)

    def warn_of_stale(self, ids: Sequence[str], folder: Path) -> None:
        """Name the results in a folder whose inputs are gone; nothing of them is removed unless that is asked for."""
        if ids:
            shown = ", ".join(ids[:5]) + (f" and {len(ids) - 5:,} more" if len(ids) > 5 else "")
            self.warn(f"{folder} holds results of {shown}, which have no input any more: --overwrite removes them")

    def failed(self, failure: CaseError) -> None:
        """Remember a case that failed."""
        self.failures.append(failure)

    def finish(self) -> int:
        """List the cases that failed and return the exit code."""
        if not self.failures:
            return DONE
        print(f"{plural(len(self.failures), 'case')} failed:", file=sys.stderr)
        for failure in self.failures:
            print(f"  {clean(failure.case_id)}: {in_options(failure.reason)}", file=sys.stderr)
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


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], text: bool = False) -> Table:
    """Return a plain table; the first column is text, the others are numbers unless `text` says otherwise."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for number, heading in enumerate(headings):
        made.add_column(heading, justify="right" if number and not text else "left")
    for row in rows:
        made.add_row(*(Text(clean_lines(cell)) for cell in row))  # a name in brackets is no markup
    return made


def plural(count: int, noun: str) -> str:
    """Return a count with its noun.

    >>> plural(1, "case"), plural(1200, "voxel")
    ('1 case', '1,200 voxels')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def in_options(text: str) -> str:
    """Return a message of the library in the words of the command line.

    >>> in_options("Pass label_axes='zyx', or ignore=255; choose it with key=.")
    'Pass --label-axes zyx, or --ignore 255; choose it with --key.'
    """
    return _ARGUMENT.sub(lambda found: f"--{found[1].replace('_', '-')} {found[2] or found[3] or ''}".rstrip(), text)


@contextmanager
def warnings_in_one_line() -> Iterator[None]:
    """Print suspicions of the library as a command's own warnings; other warnings stay as they are."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", SuspicionWarning)
        other = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *place: Any, **options: Any) -> None:
            if issubclass(category, SuspicionWarning):
                print(f"warning: {in_options(str(message))}", file=sys.stderr)
            else:
                other(message, category, *place, **options)

        warnings.showwarning = show
        yield
