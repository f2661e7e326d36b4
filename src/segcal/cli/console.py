"""How commands speak: results on stdout, everything else on stderr, one JSON document if asked for one."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from segcal.cases.base import CaseError
from segcal.cli.codes import DONE, SOME_FAILED
from segcal.cli.wording import in_options, plural
from segcal.documents import json_text, write_json
from segcal.names import clean, clean_lines


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

    def document(self, data: dict[str, Any], path: Path | None = None) -> None:
        """Print the JSON document, if it was asked for, and write it; the cases that failed are part of it."""
        failed = {failure.case_id: in_options(failure.reason) for failure in self.failures}
        if path is not None:
            write_json(path, {"made_by": f"segcal {path.stem}"} | data | {"failed": failed})
        if self._json:
            sys.stdout.write(json_text(data | {"failed": failed}, indent=1) + "\n")

    def warn(self, text: str) -> None:
        """Print a warning."""
        print(f"warning: {in_options(clean(text))}", file=sys.stderr)

    def written(self, count: int, folder: Path, already: int, stale: Sequence[str]) -> None:
        """Say how many cases were written; of results whose inputs are gone nothing is removed unless asked for."""
        self.say(
            f"{plural(count, 'case')} written to {folder}" + (f", {already:,} were there already" if already else "")
        )
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
