"""What each result of a folder was made from: ``.segcal/CASE.json``, one a case, written before the result itself.

A result is done if it was made from the same thing (inputs, options, calibrator) and its files are as they were
written. Because the record comes first, a kill in between leaves a record that its files do not answer to, and the case
is done again; and every file that is there belongs to a record, so what segcal did not write is known by that.

``{"format": "segcal-record", "version": 1, "case": id, "made_from": digest, "files": {name: digest}}``
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from segcal.atomic import naming, put, temporary
from segcal.cases.identity import content_digest
from segcal.documents import read_json
from segcal.errors import InputError

FOLDER = ".segcal"
FORMAT = "segcal-record"
VERSION = 1


@dataclass(frozen=True)
class Record:
    """What is known of one result: the digest of what it was made from, and that of each of its files, by name."""

    made_from: str
    files: dict[str, str]


class Records:
    """The records of a folder of results.

    Args:
        folder: where the results are.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find(self, case_id: str) -> Record | None:
        """Return the record of a case; None where there is none that can be read."""
        path = self._path(case_id)
        try:
            content = read_json(path) if path.is_file() else {}
        except (InputError, OSError):  # such as a name that is too long for a file system
            return None
        files = content.get("files")
        if (content.get("format"), content.get("version")) != (FORMAT, VERSION) or not isinstance(files, dict):
            return None
        # Names may come from a file that somebody edited: nothing outside the folder is ever touched.
        inside = all(".." not in Path(name).parts and not Path(name).is_absolute() for name in files)
        return Record(str(content.get("made_from")), files) if inside else None

    def done(self, case_id: str, made_from: str) -> Record | None:
        """Return the record of a case that was made from this and whose files are as they were written, or None."""
        record = self.find(case_id)
        if record is None or record.made_from != made_from:
            return None
        return record if set(self._intact(record)) == set(record.files) else None

    def place(self, case_id: str, made_from: str, beside: Path, names: Sequence[str]) -> tuple[Path, ...]:
        """Put the files of a case in place, after their record; files of an earlier result that are not among them go.

        Args:
            case_id: which case.
            made_from: the digest of everything that it depends on.
            beside: a temporary folder inside the folder, with the files.
            names: their names, relative to it, the one that completes the case last.
        """
        before = self.find(case_id)
        content = {"format": FORMAT, "version": VERSION, "case": case_id, "made_from": made_from}
        files = {name: content_digest(beside / name) for name in names}
        record = beside / FOLDER
        record.write_text(json.dumps(content | {"files": files}, indent=1) + "\n", encoding="utf-8")
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

    def remove(self, ids: Iterable[str]) -> None:
        """Remove the results of some cases; a file that was changed since stays."""
        for case_id in ids:
            record = self.find(case_id)
            if record is None:
                continue
            self._delete(self._intact(record))
            self._path(case_id).unlink(missing_ok=True)

    def _path(self, case_id: str) -> Path:
        return self.folder / FOLDER / f"{case_id}.json"

    def _intact(self, record: Record) -> list[str]:
        return [name for name, found in record.files.items() if found and content_digest(self.folder / name) == found]

    def _delete(self, names: Sequence[str]) -> None:
        for name in names:
            with temporary(self.folder) as beside:  # a folder goes at once, or not at all
                (self.folder / name).replace(beside / Path(name).name)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a name that is too long is nobody's
        return False
