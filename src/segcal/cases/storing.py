"""Converting any cases to segcal's own store, one case at a time; what is complete is not written again."""

import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from segcal.cases.base import Case, Cases
from segcal.cases.formats.store import DATASET, read_dataset, save_case, write_dataset
from segcal.errors import InputError


class StoreWriter:
    """Writes cases of one collection to a store.

    Args:
        cases: what the store will hold; its kind, pooling and class names go into ``dataset.json``.
        folder: the target, made if it is not there; it may hold a part of the same collection already.
    """

    def __init__(self, cases: Cases, folder: str | Path) -> None:
        self.cases = cases
        self.folder = Path(folder)
        if self.folder.resolve() in {member.folder.resolve() for member in getattr(cases, "members", ())}:
            raise InputError(
                f"{folder} holds the predictions themselves, but they are never overwritten. Name a new folder."
            )
        facts = {
            "kind": cases.kind,
            "pooling": cases.pooling,
            "num_classes": cases.num_classes,
            "class_names": None if cases.class_names is None else list(cases.class_names),
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        if (self.folder / DATASET).exists():
            found = read_dataset(self.folder)
            different = [name for name, value in facts.items() if found.get(name) != value]
            if different:
                raise InputError(
                    f"{folder} holds a store with another {different[0]} ({found.get(different[0])!r}), but "
                    f"{facts[different[0]]!r} is to be written. Name a new folder."
                )
        elif any(self.folder.glob("*.safetensors")):
            raise InputError(f"{folder} has files that are no store, but they would be mixed. Name a new folder.")
        write_dataset(self.folder, facts)

    def done(self, case_id: str) -> bool:
        """Whether the case is complete in the store."""
        with suppress(OSError):  # a name that is too long fails its case, when it is written
            return (self.folder / f"{case_id}.safetensors").exists()
        return False

    def write(self, case: Case) -> Path:
        """Write one case, beside and then renamed."""
        beside = Path(tempfile.mkdtemp(prefix=".writing-", dir=self.folder))  # an id may be too long for more
        try:
            name = save_case(case, beside, self.cases.has_offset)
            return (beside / name).replace(self.folder / name)
        finally:
            for left in beside.iterdir():
                left.unlink()
            beside.rmdir()


def convert(cases: Cases, folder: str | Path) -> Iterator[str]:
    """Write all cases that are not in the store yet, and yield the id of each when it is complete."""
    writer = StoreWriter(cases, folder)
    for case_id in cases.ids:
        if not writer.done(case_id):
            writer.write(cases.read(case_id))
        yield case_id
