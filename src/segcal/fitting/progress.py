"""A line of progress on a terminal; in a pipe, what the caller makes of it."""

import sys
from collections.abc import Callable
from types import TracebackType
from typing import Self, TypeAlias

from rich.console import Console
from rich.status import Status

# Takes a short text on how far the work is.
Report: TypeAlias = Callable[[str], None]


def silent(message: str) -> None:
    """Take a message of progress and show it to nobody."""


class Progress:
    """Shows what a fit is doing, after a title; cleared when it is done. `show` forces or forbids it."""

    def __init__(self, title: str, show: bool | None = None) -> None:
        self._title = title
        self._status: Status | None = None
        if sys.stderr.isatty() if show is None else show:
            self._status = Status(title, console=Console(stderr=True))

    def __call__(self, message: str) -> None:
        """Show a message."""
        if self._status is not None:
            self._status.update(f"{self._title}: {message}")

    def __enter__(self) -> Self:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()
