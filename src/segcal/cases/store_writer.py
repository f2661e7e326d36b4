"""Converting any cases to segcal's own store, one case at a time; what is complete is not written again."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from segcal.arguments import typed
from segcal.atomic import naming, temporary, write_text
from segcal.cases.base import Case, CaseError, Cases
from segcal.cases.formats.store import DATASET, StoreFacts, is_stored_case, read_dataset, save_case, write_dataset
from segcal.cases.parallel import Workers, map_cases
from segcal.cases.records import MARKER, Records, read_marker
from segcal.errors import InputError
from segcal.target import claim, entries


class StoreWriter:
    """Writes cases of one collection to a store.

    Args:
        cases: what the store will hold; its kind, pooling and class names go into ``dataset.json``. Where its
            predictions are calibrated already, the store says so too.
        folder: the target, made if it is not there; it may hold a part of the same collection already.
        overwrite: clear a store of another kind, pooling or classes, and remove cases that are not in the collection.
    """

    def __init__(self, cases: Cases, folder: str | Path, overwrite: bool = False) -> None:
        self.cases = cases
        self.folder = Path(folder)
        self.records = Records(self.folder)
        if self.folder.resolve() in cases.folders():
            raise InputError(
                f"{folder} holds the predictions themselves, but they are never overwritten. Name a new folder."
            )
        names = None if cases.class_names is None else list(cases.class_names)
        facts = StoreFacts(kind=cases.kind, pooling=cases.pooling, num_classes=cases.num_classes, class_names=names)
        marker = next((found for path in sorted(cases.folders()) if (found := read_marker(path)) is not None), None)
        if marker is not None:
            marker |= {"made_by": "convert"}
        self._check_folder(facts, marker, overwrite)
        for case_id in cases.ids:
            if not is_stored_case(self.folder / f"{case_id}.safetensors"):
                self.records.require_own(case_id, [f"{case_id}.safetensors"])
        write_dataset(self.folder, facts)
        if marker is not None and read_marker(self.folder) != marker:
            write_text(self.folder / MARKER, json.dumps(marker, indent=1) + "\n")

    def done(self, case_id: str) -> bool:
        """Whether the case is complete in the store, made from what is there now."""
        return self.records.done(case_id, partial(self.cases.identity, case_id)) is not None

    def write(self, case: Case) -> Path:
        """Write one case."""
        made_from = self.cases.identity(case.id)
        with naming(self.folder / f"{case.id}.safetensors"), temporary(self.folder) as beside:
            name = save_case(case, beside, self.cases.has_offset)
            return self.records.place(case.id, made_from, beside, [name])[0]

    def _check_folder(self, stored: StoreFacts, marker: dict[str, object] | None, overwrite: bool) -> None:
        """Refuse a folder in which cases of something else would be taken for these, or clear it if that is meant."""
        if not (self.folder / DATASET).exists():
            if any(not name.startswith(".") for name in entries(self.folder)):
                raise InputError(
                    f"{self.folder} has files that are no store, but they would be mixed. Name a new folder."
                )
            return
        found = msgspec.structs.asdict(read_dataset(self.folder)) | {"calibration": read_marker(self.folder)}
        facts = msgspec.structs.asdict(stored) | {"calibration": marker}
        different = [name for name, value in facts.items() if found.get(name) != value]
        if different and not overwrite:
            raise InputError(
                f"{self.folder} holds a store with another {different[0]} ({found.get(different[0])!r}), but "
                f"{facts[different[0]]!r} is to be written. Name a new folder, or pass overwrite=True."
            )
        if overwrite:
            self.records.remove(self.records.others(() if different else self.cases.ids))
        if marker is None and found["calibration"] is not None:
            (self.folder / MARKER).unlink()


class Converted(NamedTuple):
    """The result of :func:`convert`: the cases it wrote, how many were complete, and those without an input."""

    written: list[str]
    already: int
    stale: list[str]


@typed
def convert(
    cases: Cases,
    folder: str | Path,
    overwrite: bool = False,
    workers: Workers = 1,
    progress: Callable[[str], None] | None = None,
    failed: Callable[[CaseError], None] | None = None,
) -> Converted:
    """Write all cases that are not in the store yet, or not as they are now.

    One process at a time has the folder; `overwrite` as for :class:`StoreWriter`. `progress` is told the id of each
    case when it is done, or found complete. `failed` takes the error of a case that is not usable.
    """
    if not isinstance(cases, Cases):
        raise InputError(
            f"cases is {type(cases).__name__}, but cases are needed. Make them with segcal.open_cases or "
            "segcal.as_cases."
        )
    cases.require_classes("a store")
    cases.require_one_rater("a store")
    written = []
    with claim(Path(folder)):
        writer = StoreWriter(cases, folder, overwrite)
        missing = cases.subset(case_id for case_id in cases.ids if not writer.done(case_id))
        stale = writer.records.others(cases.ids)
        tell = progress or (lambda case_id: None)
        for case_id in sorted({*cases.ids} - {*missing.ids}):
            tell(case_id)
        for case_id, _ in map_cases(missing, writer.write, workers, failed):
            written.append(case_id)
            tell(case_id)
    return Converted(written, len(cases) - len(missing), stale)
