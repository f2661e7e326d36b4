"""Output of commands: results on stdout, everything else on stderr, one JSON document if asked for one.

Messages of the library are put in the words of the command line. Progress is a bar on a terminal. In a pipe or a log it
is a line after :data:`PERIOD` seconds of silence, and at the end of a stage that had one. A timer of the system calls
for it, where there is one, and no thread: a process that has one starts its workers more slowly.
"""

import re
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from segcal.cases import ReadOptions
from segcal.cases.base import CaseError
from segcal.cli.commands import DONE, SOME_FAILED
from segcal.documents import json_text, write_json
from segcal.errors import SegcalError, SuspicionWarning
from segcal.names import clean, clean_lines

if TYPE_CHECKING:  # a benchmark is much to import for a bar
    from segcal.benchmark.run import Step

PERIOD, TICK = 9.5, 0.25
# Arguments of the library that are options as well, with "-" for "_".
OPTIONS = (*(field.name for field in fields(ReadOptions)), "device", "workers", "overwrite")
_ARGUMENT = re.compile(rf"\b({'|'.join(OPTIONS)})=(?:'([^']*)'|(-?\d+)|True\b)?")


class _Console(Console):
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # the main program decides what it means


class Output:
    """Where a command writes; `as_json`: one JSON document on stdout and nothing else there."""

    def __init__(self, as_json: bool) -> None:
        self._json = as_json
        self._out = _Console(highlight=False)  # in a pipe 80 columns, or what COLUMNS says
        self.width = self._out.width
        self.failures: list[CaseError] = []

    def say(self, *texts: Any) -> None:
        """Print for a person; silent with JSON."""
        for text in () if self._json else texts:
            if isinstance(text, str):
                # A sentence in a pipe is one line, whatever its length.
                self._out.print(clean_lines(text), markup=False, soft_wrap=not self._out.is_terminal)
                continue
            with self._out.capture() as captured:
                self._out.print(text)
            self._out.file.write("\n".join(line.rstrip() for line in captured.get().splitlines()) + "\n")

    def document(self, data: Mapping[str, object], path: Path | None = None) -> None:
        """Print the JSON document, if it was asked for, and write it; the cases that failed are part of it."""
        failed = {failure.case_id: in_options(failure.reason) for failure in self.failures}
        if path is not None:
            write_json(path, {"made_by": f"segcal {path.stem}", **data, "failed": failed})
        if self._json:
            sys.stdout.write(json_text({**data, "failed": failed}, indent=1) + "\n")

    def warn(self, text: str) -> None:
        """Print a warning."""
        print(f"warning: {in_options(clean(text))}", file=sys.stderr)

    def written(self, number: int, folder: Path, already: int, stale: Sequence[str]) -> None:
        """Say how many cases were written; of results whose inputs are gone nothing is removed unless asked for."""
        there = f", {already:,} were there already" if already else ""
        self.say(f"{plural(number, 'case')} written to {folder}{there}")
        if stale:
            shown = ", ".join(stale[:5]) + (f" and {len(stale) - 5:,} more" if len(stale) > 5 else "")
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


def option(name: str) -> str:
    """Return the option of an argument."""
    return f"--{name.replace('_', '-')}"


def in_options(text: str) -> str:
    """Return a message of the library in the words of the command line."""
    return _ARGUMENT.sub(lambda found: f"{option(found[1])} {found[2] or found[3] or ''}".rstrip(), text)


def sentence(error: SegcalError | OSError) -> str:
    """Return what a failure says; of one of the system's, a sentence about the file.

    >>> sentence(FileExistsError(17, "File exists", "notes.txt"))
    'notes.txt cannot be used (File exists), but the command needs it. Check the path and the disk, and run it again.'
    """
    if isinstance(error, SegcalError) or not error.strerror:
        return str(error)
    what = f"{str(error.filename or 'a file')[:200]} cannot be used ({error.strerror})"
    return f"{what}, but the command needs it. Check the path and the disk, and run it again."


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


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], text: bool = False) -> Table:
    """Return a plain table; the first column is text, the others are numbers unless `text` says otherwise.

    Where there is no room, texts go on in the next line, and numbers stay whole.
    """
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for number, heading in enumerate(headings):
        plain = text or not number or not heading
        made.add_column(heading, justify="left" if plain else "right", overflow="fold", no_wrap=not plain)
    for row in rows:
        made.add_row(*(Text(clean_lines(cell)) for cell in row))  # a name in brackets is no markup
    return made


def plural(number: int, noun: str) -> str:
    """Return a count with its noun."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


@contextmanager
def case_bar(title: str, total: int, quiet: bool = False) -> Iterator[Callable[..., None]]:
    """Show how many of so many cases are done, and give what counts one."""
    done = count(1)
    with _bar(title, quiet, TimeRemainingColumn(), total) as show:
        yield lambda *_: show(title, next(done), total, " cases")


@contextmanager
def step_bar(title: str, quiet: bool = False) -> Iterator[Callable[["Step"], None]]:
    """Show steps of several kinds, and give what takes them; `title` is shown where one has no message."""
    with _bar(title, quiet, TimeElapsedColumn()) as show:
        yield lambda step: show(step.message or title, step.done, step.total)


@contextmanager
def fit_line(title: str, quiet: bool = False) -> Iterator[Callable[[str], None] | None]:
    """Give what takes short texts on how far a fit is; None on a terminal, where the fit shows them itself."""
    with _lines(title, quiet) as say:
        yield None if sys.stderr.isatty() and not quiet else lambda message: say(f"{title}: {message}")


@contextmanager
def _bar(title: str, quiet: bool, clock: Any, total: int | None = None) -> Iterator[Callable[..., None]]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), clock)
    shown = Progress(*columns, console=Console(stderr=True), transient=True, disable=quiet or not sys.stderr.isatty())
    with shown, _lines(title, quiet) as say:
        task = shown.add_task(title, total=total)

        def show(what: str, done: int, of: int, unit: str = "") -> None:
            shown.update(task, completed=done, total=of, description=what)
            say(f"{what}: {done} of {of}{unit}")

        yield show


@contextmanager
def under_way(command: str, quiet: bool = False) -> Iterator[None]:
    """Say in a pipe that a command is at work, where nothing else says how far it is."""
    with _lines(f"{command}: under way", quiet, ends=False):
        yield


@contextmanager
def _lines(title: str, quiet: bool, ends: bool = True) -> Iterator[Callable[[str], None]]:
    """Give what takes texts and prints one from time to time, and the last, where there is no terminal."""
    start = last = time.monotonic()
    text = title

    def show() -> None:
        nonlocal last
        last = time.monotonic()
        print(f"{text}, {last - start:.0f} s", file=sys.stderr, flush=True)

    def remind(*_: object) -> None:
        if time.monotonic() - last >= PERIOD:
            show()

    def say(now: str) -> None:
        nonlocal text
        text = now
        remind()

    if quiet or sys.stderr.isatty():
        yield lambda _: None
        return
    with _reminded(remind):
        yield say
    if ends and last > start:
        show()


@contextmanager
def _reminded(remind: Callable[..., None]) -> Iterator[None]:
    """Call a function every moment, whatever the main thread does meanwhile; only there, and where signals can."""
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return
    before, timer = signal.signal(signal.SIGALRM, remind), signal.setitimer(signal.ITIMER_REAL, TICK, TICK)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, before)
