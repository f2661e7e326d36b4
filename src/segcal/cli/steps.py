"""A bar for work in steps of several kinds, on a terminal only."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from segcal.benchmark.run import Step


@contextmanager
def step_bar(title: str) -> Iterator[Callable[[Step], None]]:
    """Show a bar while something runs, and give what takes its steps.

    Args:
        title: shown where a step has no message.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(title, total=None)

        def show(step: Step) -> None:
            bar.update(task, completed=step.done, total=step.total, description=step.message or title)

        yield show
