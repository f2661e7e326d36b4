"""The library's messages in the words of the command line, and tables and counts as commands print them."""

import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from segcal.cases import ReadOptions
from segcal.errors import SegcalError, SuspicionWarning
from segcal.names import clean_lines

# Options of another name than the argument of the library.
RENAMED = {"pooling": "pool"}
# Arguments of the library that are options as well, with "-" for "_".
OPTIONS = (*(field.name for field in fields(ReadOptions)), "device", "workers", "overwrite")
_ARGUMENT = re.compile(rf"\b({'|'.join(OPTIONS)})=(?:'([^']*)'|(-?\d+)|True\b)?")


def option(name: str) -> str:
    """Return the option of an argument.

    >>> option("class_axis"), option("pooling")
    ('--class-axis', '--pool')
    """
    return f"--{RENAMED.get(name, name).replace('_', '-')}"


def in_options(text: str) -> str:
    """Return a message of the library in the words of the command line.

    >>> in_options("Pass label_axes='zyx', or ignore=255; choose it with key=.")
    'Pass --label-axes zyx, or --ignore 255; choose it with --key.'
    """
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


def plural(count: int, noun: str) -> str:
    """Return a count with its noun.

    >>> plural(1, "case"), plural(1200, "voxel")
    ('1 case', '1,200 voxels')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
