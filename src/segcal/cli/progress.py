"""How far a command is, on stderr: a bar on a terminal, and in a pipe or a log a line now and then.

A line comes when nothing was said for :data:`PERIOD` seconds, and at the end of a stage that had one: what takes no
longer is silent. It is written by a thread of its own, since a single case may take longer than that.
"""

import sys
import threading
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

    with (
        _shown(TimeRemainingColumn(), quiet) as bar,
        _lines(lambda: f"{title}: {done} of {total} cases", quiet),
    ):
        task = bar.add_task(title, total=total)
        yield count


@contextmanager
def step_bar(title: str, quiet: bool = False) -> Iterator[Callable[["Step"], None]]:
    """Show steps of several kinds, and give what takes them; `title` is shown where one has no message."""
    text = title

    def show(step: "Step") -> None:
        nonlocal text
        what = step.message or title
        text = f"{what}: {step.done} of {step.total}"
        bar.update(task, completed=step.done, total=step.total, description=what)

    with _shown(TimeElapsedColumn(), quiet) as bar, _lines(lambda: text, quiet):
        task = bar.add_task(title, total=None)
        yield show


@contextmanager
def fit_line(title: str, quiet: bool = False) -> Iterator[Callable[[str], None] | None]:
    """Give what takes short texts on how far a fit is; None on a terminal, where the fit shows them itself."""
    text = title

    def take(message: str) -> None:
        nonlocal text
        text = f"{title}: {message}"

    with _lines(lambda: text, quiet):
        yield None if sys.stderr.isatty() and not quiet else take


@contextmanager
def _lines(text: Callable[[], str], quiet: bool) -> Iterator[None]:
    """Print what `text` says, from time to time, where there is no terminal."""
    if quiet or sys.stderr.isatty():
        yield
        return
    start, over, said = time.monotonic(), threading.Event(), threading.Event()

    def say() -> None:
        print(f"{text()}, {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)

    def watch() -> None:
        while not over.wait(PERIOD):
            say()
            said.set()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        if said.is_set():
            say()


def _shown(time: Any, quiet: bool) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), time)
    hidden = quiet or not sys.stderr.isatty()
    return Progress(*columns, console=Console(stderr=True), transient=True, disable=hidden)
