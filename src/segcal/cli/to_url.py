"""Results that go to a URL: they are made here, and spoken of as what they will be."""

import argparse
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, TextIO

from segcal.cases.remote import check_new, upload
from segcal.errors import InputError


def run_to_url(args: argparse.Namespace, url: str) -> int:
    """Have the results of a command made here, and bring them to a URL when all are there."""
    check_new(url)
    with tempfile.TemporaryDirectory(prefix="segcal-") as place:
        args.output = Path(place) / "results"
        with naming(str(args.output), url.rstrip("/")):
            code: int = args.run(args)
        upload(args.output, url)
    return code


@contextmanager
def naming(place: str, url: str) -> Iterator[None]:
    """Let whatever is printed, or raised for a user, name a URL instead of a place."""
    with redirect_stdout(_Naming(sys.stdout, place, url)), redirect_stderr(_Naming(sys.stderr, place, url)):
        try:
            yield
        except InputError as error:
            if place in str(error):
                raise InputError(str(error).replace(place, url)) from None
            raise


class _Naming:
    """A stream in which every text has another name for a place; all else is the stream's."""

    def __init__(self, stream: TextIO, place: str, url: str) -> None:
        self._stream, self._place, self._url = stream, place, url

    def write(self, text: str) -> int:
        return self._stream.write(text.replace(self._place, self._url))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
