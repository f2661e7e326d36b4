"""Progress bars on stderr, on a terminal only."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

if TYPE_CHECKING:  # a benchmark is much to import for a bar
    from segcal.benchmark.run import Step


@contextmanager
def case_bar(title: str, total: int) -> Iterator[Callable[..., None]]:
    """Show a bar over so many cases, and give what counts one."""
    with _shown(TimeRemainingColumn()) as bar:
        task = bar.add_task(title, total=total)
        yield lambda *_: bar.advance(task)


@contextmanager
def step_bar(title: str) -> Iterator[Callable[["Step"], None]]:
    """Show a bar of steps of several kinds, and give what takes them; `title` is shown where one has no message."""
    with _shown(TimeElapsedColumn()) as bar:
        task = bar.add_task(title, total=None)
        yield lambda step: bar.update(task, completed=step.done, total=step.total, description=step.message or title)


def _shown(time: Any) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), time)
    return Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())
