"""How far a command is, on stderr: a bar on a terminal, and in a pipe or a log a line now and then.

A line comes with the first step after :data:`PERIOD` seconds of silence, and at the end of a stage that had one: what
takes no longer is silent. No thread writes it: a process that has one starts its workers more slowly.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

if TYPE_CHECKING:  # a benchmark is much to import for a bar
    from segcal.benchmark.run import Step

PERIOD = 10.0


@contextmanager
def case_bar(title: str, total: int, quiet: bool = False) -> Iterator[Callable[..., None]]:
    """Show how many of so many cases are done, and give what counts one."""
    done = 0

    def count(*_: Any) -> None:
        nonlocal done
        done += 1
        bar.advance(task)
        say(f"{title}: {done} of {total} cases")

    with _shown(TimeRemainingColumn(), quiet) as bar, _lines(quiet) as say:
        task = bar.add_task(title, total=total)
        yield count


@contextmanager
def step_bar(title: str, quiet: bool = False) -> Iterator[Callable[["Step"], None]]:
    """Show steps of several kinds, and give what takes them; `title` is shown where one has no message."""

    def show(step: "Step") -> None:
        what = step.message or title
        bar.update(task, completed=step.done, total=step.total, description=what)
        say(f"{what}: {step.done} of {step.total}")

    with _shown(TimeElapsedColumn(), quiet) as bar, _lines(quiet) as say:
        task = bar.add_task(title, total=None)
        yield show


@contextmanager
def fit_line(title: str, quiet: bool = False) -> Iterator[Callable[[str], None] | None]:
    """Give what takes short texts on how far a fit is; None on a terminal, where the fit shows them itself."""
    with _lines(quiet) as say:
        yield None if sys.stderr.isatty() and not quiet else lambda message: say(f"{title}: {message}")


@contextmanager
def _lines(quiet: bool) -> Iterator[Callable[[str], None]]:
    """Give what takes texts and prints one from time to time, and the last, where there is no terminal."""
    start = last = time.monotonic()
    text = ""

    def say(now: str) -> None:
        nonlocal text, last
        text = now
        if time.monotonic() - last >= PERIOD:
            last = _say(text, start)

    silent = quiet or sys.stderr.isatty()
    yield (lambda _: None) if silent else say
    if last > start:
        _say(text, start)


def _say(text: str, start: float) -> float:
    """Print a text with the seconds since the start, and return the time."""
    now = time.monotonic()
    print(f"{text}, {now - start:.0f} s", file=sys.stderr, flush=True)
    return now


def _shown(time: Any, quiet: bool) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), time)
    hidden = quiet or not sys.stderr.isatty()
    return Progress(*columns, console=Console(stderr=True), transient=True, disable=hidden)
