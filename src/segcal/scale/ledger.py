"""Results of single cases on disk, in blocks that are complete or absent.

A block begins with a line that says what it is, the length of its table and the table: what was done, to which case,
the key of what it was made from, whether it failed, and how long its bytes are. The bytes follow. Only tables are held
in memory; a result is read when it is asked for, so that memory does not grow with the size of the results. Of a run
that is killed, at most what came in the last few seconds is lost.
"""

import time
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from segcal.atomic import write_bytes
from segcal.cases.base import CaseError
from segcal.checks import check_memory, memory_limit
from segcal.errors import InputError
from segcal.scale.plain import UnknownResultError, pack, unpack

HEAD = b"segcal results 1\n"
ENDING = ".results"
# A block is written when it has so many results or bytes, or is so many seconds old.
MOST_RESULTS, MOST_BYTES, MOST_SECONDS = 256, 16 << 20, 5.0
MOST_TABLE = 64 << 20


class Line(msgspec.Struct, frozen=True, array_like=True):
    """One result in the table of a block."""

    about: str
    case: str
    key: str
    failed: bool
    size: int


class Entry(NamedTuple):
    """Where a result is, and what it was made from."""

    path: Path
    start: int
    line: Line


class Ledger:
    """The results in one folder; `entries` are those on disk, by what was done and by case, the last one if several."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.entries: dict[tuple[str, str], Entry] = {}
        self._waiting: list[tuple[Line, bytes]] = []
        self._since = time.monotonic()
        for path in sorted(folder.glob(f"*{ENDING}")):
            self._enter(path)

    def add(self, about: str, case_id: str, key: str, result: Any) -> None:
        """Keep a result, or the :class:`CaseError` of a case that failed."""
        failed = isinstance(result, CaseError)
        content = pack(result.reason if failed else result)
        self._waiting.append((Line(about, case_id, key, failed, len(content)), content))
        full = len(self._waiting) >= MOST_RESULTS or sum(line.size for line, _ in self._waiting) >= MOST_BYTES
        if full or time.monotonic() - self._since > MOST_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write what is not on disk yet."""
        self._since = time.monotonic()
        if not self._waiting:
            return
        table = msgspec.msgpack.encode([line for line, _ in self._waiting])
        number = 1 + max((int(path.stem) for path in self.folder.glob(f"*{ENDING}") if path.stem.isdigit()), default=-1)
        path = self.folder / f"{number:06d}{ENDING}"
        write_bytes(path, b"".join([HEAD, len(table).to_bytes(8, "big"), table, *(each for _, each in self._waiting)]))
        self._waiting = []
        self._enter(path)

    def read(self, about: str, case_id: str) -> Any:
        """Return the result of a case; raise what it failed with."""
        entry = self.entries[about, case_id]
        check_memory(entry.path, entry.line.size, memory_limit(), "Run the part again.")
        with entry.path.open("rb") as file:
            file.seek(entry.start)
            content = file.read(entry.line.size)
        try:
            result = unpack(content)
        except UnknownResultError as error:
            raise _damaged(entry.path, str(error)) from None
        if entry.line.failed:
            raise CaseError(case_id, str(result))
        return result

    def _enter(self, path: Path) -> None:
        if path.is_symlink() or not path.is_file():
            raise _damaged(path, "it is a link, or no file")
        with path.open("rb") as file:
            head, size = file.read(len(HEAD)), file.read(8)
            if head != HEAD or len(size) < 8:
                raise _damaged(path, "it does not begin like one")
            length, total = int.from_bytes(size, "big"), path.stat().st_size
            if length > min(total, MOST_TABLE):
                raise _damaged(path, "its table is cut off, or too large")
            try:
                lines = msgspec.msgpack.decode(file.read(length), type=list[Line])
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise _damaged(path, str(error)) from None
        start = len(HEAD) + 8 + length
        if start + sum(line.size for line in lines) != total or any(line.size < 0 for line in lines):
            raise _damaged(path, "its results are cut off")
        for line in lines:
            self.entries[line.about, line.case] = Entry(path, start, line)
            start += line.size


def _damaged(path: Path, reason: str) -> InputError:
    return InputError(
        f"{path} is damaged ({reason}), but results of a part are needed. Remove the file and run the part again."
    )
