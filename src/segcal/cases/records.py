"""Records of a folder of results: what each was made from, and whether predictions are calibrated.

``.segcal/CASE.json``, one per case, is written before the result itself. A result is done if it was made from the same
thing (inputs, options, calibrator) and its files are as they were written. The record comes first, so a kill in between
leaves a record that does not match its files, and the case is done again. Every file of segcal belongs to a record; any
other file was not written by it.

Reading everything again to find out that nothing changed would cost as much as the work itself. So a file is known by
its size and by :data:`BLOCKS` blocks of its bytes, spread evenly from the first to the last. These include headers, and
the checksums of zip, gzip and png files, which depend on all of their content. An input is known by its time of change
as well, newer or older. What is not noticed is an input of the same size and time whose bytes differ only between the
blocks. A folder (zarr) is known by the names, and in this way by the content, of all its files.

``calibration.json`` in a folder of predictions says that they are calibrated, and what was done to them.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Sequence
from mmap import mmap
from pathlib import Path

import msgspec

from segcal.atomic import naming, put, temporary
from segcal.cases.base import naming_case
from segcal.documents import read_json
from segcal.errors import InputError
from segcal.target import entries

FOLDER = ".segcal"
FORMAT, VERSION = "segcal-record", 1
MARKER = "calibration.json"
APPLIED = "segcal-applied"
BLOCKS = 16
BLOCK_BYTES = 4096


class Record(msgspec.Struct, frozen=True):
    """One result: the digest of what it was made from, and that of each of its files, by name."""

    format: str
    version: int
    case: str
    made_from: str
    files: dict[str, str]


class Records:
    """The records of a folder of results."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find(self, case_id: str) -> Record | None:
        """Return the record of a case; None where there is none that can be read."""
        path = self._path(case_id)
        try:
            record = msgspec.convert(read_json(path) if path.is_file() else {}, Record)
        except (OSError, ValueError):  # such as a name that is too long for a file system
            return None
        # Names may come from a file that somebody edited: nothing outside the folder is ever touched.
        inside = all(".." not in Path(name).parts and not Path(name).is_absolute() for name in record.files)
        return record if inside and (record.format, record.version) == (FORMAT, VERSION) else None

    def done(self, case_id: str, made_from: str | Callable[[], str]) -> Record | None:
        """Return the record of a case that was made from this and whose files are as they were written, or None.

        A function says what it is made from only where there is a record: that opens the files of the input.
        """
        record = self.find(case_id)
        if record is None or record.made_from != (made_from if isinstance(made_from, str) else made_from()):
            return None
        return record if set(self._intact(record)) == set(record.files) else None

    def write(
        self, case_id: str, made_from: str, make: Callable[[Path], Iterable[Path]], name: str = ""
    ) -> tuple[Path, ...]:
        """Put the files in place that `make` writes into an empty folder and returns: they are the result of a case.

        The last one completes it. Where its name is known before, that it may be replaced was looked at before; what
        goes wrong with the disk goes wrong with the file of this name.
        """
        with naming_case(case_id), naming(self.folder / (name or case_id)), temporary(self.folder) as beside:
            names = [path.relative_to(beside).as_posix() for path in make(beside)]
            if not name:
                self.require_own(case_id, names)
            return self.place(case_id, made_from, beside, names)

    def place(self, case_id: str, made_from: str, beside: Path, names: Sequence[str]) -> tuple[Path, ...]:
        """Put the files of a case in place, after their record; files of an earlier result that are not among them go.

        They lie in `beside`, a temporary folder inside the folder; the one that completes the case is named last.
        """
        before = self.find(case_id)
        files = {name: content_digest(beside / name) for name in names}
        for name in names:
            self._require_nothing_added(name, beside / name, "" if before is None else before.files.get(name, ""))
        record = beside / FOLDER
        content = msgspec.to_builtins(Record(FORMAT, VERSION, case_id, made_from, files))
        record.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        self._path(case_id).parent.mkdir(exist_ok=True)
        gone = [] if before is None else [name for name in self._intact(before) if name not in files]
        put(record, self._path(case_id))
        for name in names:
            with naming(self.folder / name):
                (self.folder / name).parent.mkdir(exist_ok=True)
                put(beside / name, self.folder / name)
        self._delete(gone)
        return tuple(self.folder / name for name in names)

    def others(self, ids: Iterable[str]) -> list[str]:
        """Return the cases that have results here but are not among these."""
        there = (self.folder / FOLDER).glob("*.json")
        found = {path.name.removesuffix(".json") for path in there} - set(ids)
        return sorted(case_id for case_id in found if self.find(case_id) is not None)

    def require_own(self, case_id: str, names: Iterable[str]) -> None:
        """Refuse to write a case where a file of one of its names is there that no record of the case has."""
        record = self.find(case_id)
        for name in names:
            if (record is None or name not in record.files) and _exists(self.folder / name):
                raise InputError(
                    f"{self.folder} holds {name}, of which segcal has no record, but a result would take its place. "
                    "Name a new folder."
                )

    def require_only(self, made_by: str, what: str) -> None:
        """Refuse a folder with anything in it but results whose `made_from` begins like this; `what` they are."""
        found = [record for case_id in self.others(()) if (record := self.find(case_id)) is not None]
        known = [record.files for record in found if record.made_from.startswith(made_by)]
        own = {name.partition("/")[0] for files in known for name in files}
        if any(not name.startswith(".") and name not in own for name in entries(self.folder)):
            raise InputError(f"{self.folder} is not empty, but {what} go into a new folder. Choose another name.")

    def _require_nothing_added(self, name: str, new: Path, found: str) -> None:
        """Refuse to replace a folder (zarr) that is not as its record says and has files that the new one has not."""
        old = self.folder / name
        if not old.is_dir() or content_digest(old) == found:
            return
        added = sorted(str(path.relative_to(old)) for path in old.rglob("*") if not path.is_dir())
        lost = next((each for each in added if not (new / each).exists()), None)
        if lost is not None:
            raise InputError(
                f"{old} holds {lost}, of which segcal has no record, but a result would take its place. Move it away."
            )

    def remove(self, ids: Iterable[str]) -> None:
        """Remove the results of some cases; a file that was changed since stays."""
        for case_id in ids:
            record = self.find(case_id)
            if record is not None:
                self._delete(self._intact(record))
                self._path(case_id).unlink(missing_ok=True)

    def _path(self, case_id: str) -> Path:
        return self.folder / FOLDER / f"{case_id}.json"

    def _intact(self, record: Record) -> list[str]:
        return [name for name, found in record.files.items() if found and content_digest(self.folder / name) == found]

    def _delete(self, names: Sequence[str]) -> None:
        for name in names:
            with temporary(self.folder) as beside:  # a folder goes at once, or not at all
                put(self.folder / name, beside / Path(name).name)


def read_marker(folder: Path) -> dict[str, object] | None:
    """Return what a folder of predictions says about their calibration; None if it does not say that there was one."""
    content = read_json(folder / MARKER) if (folder / MARKER).is_file() else {}
    return content if content.get("format") == APPLIED else None


def content_digest(path: Path) -> str:
    """Return a digest of what a file or folder holds, "" if it is not there; wherever it is, and whenever it came."""
    return _digest(path, time=False)


def input_digest(path: Path) -> str:
    """Return a digest of what a file or folder holds, and when it was changed; "" if it is not there."""
    return _digest(path, time=True)


def mapped_digest(content: mmap, facts: os.stat_result) -> str:
    """Return what :func:`input_digest` does, of a file that is mapped; `facts` are of when it was."""
    return hashlib.sha256(_blocks(lambda start: content[start : start + BLOCK_BYTES], facts, True)).hexdigest()


def _digest(path: Path, time: bool) -> str:
    if path.is_file():
        return hashlib.sha256(_sample(path, time)).hexdigest()
    if not path.is_dir():
        return ""
    found = hashlib.sha256()
    for file in sorted(file for file in path.rglob("*") if file.is_file()):
        found.update(repr(file.relative_to(path).parts).encode("utf-8", "surrogateescape") + _sample(file, time))
    return found.hexdigest()


def _sample(path: Path, time: bool) -> bytes:
    with path.open("rb", buffering=0) as file:

        def read(start: int) -> bytes:
            file.seek(start)
            return file.read(BLOCK_BYTES)

        return _blocks(read, os.fstat(file.fileno()), time)


def _blocks(read: Callable[[int], bytes], facts: os.stat_result, time: bool) -> bytes:
    last = max(facts.st_size - BLOCK_BYTES, 0)
    starts = dict.fromkeys(last * number // (BLOCKS - 1) for number in range(BLOCKS))
    return b"".join([f"{facts.st_size} {facts.st_mtime_ns if time else 0} ".encode(), *map(read, starts)])


def _exists(path: Path) -> bool:
    try:
        return os.path.lexists(path)
    except OSError:  # a name that is too long is nobody's
        return False
