"""A line of progress on a terminal; in a pipe, what the caller makes of it."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from rich.console import Console
from rich.status import Status

# Takes a short text on how far the work is.
Report: TypeAlias = Callable[[str], None]


def silent(message: str) -> None:
    """Take a message of progress and show it to nobody."""


@contextmanager
def reporting(title: str, progress: Report | None = None) -> Iterator[Report]:
    """Yield what takes the messages: the caller's own, or a line after a title on a terminal, cleared at the end."""
    if progress is not None or not sys.stderr.isatty():
        yield progress or silent
        return
    with Status(title, console=Console(stderr=True)) as status:
        yield lambda message: status.update(f"{title}: {message}")
