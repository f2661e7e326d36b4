"""Parts that have served: what segcal keeps in them goes, and whatever else is in their folder stays.

Of a folder of parts these are known: facts, blocks of results and records, what submitit writes, and files that the
result has too, under the same name and with the same content. If there is nothing else, the folder goes at once or not
at all; otherwise what is known goes one by one, and a user's files stay where they are.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from segcal.atomic import put, temporary
from segcal.cases.parallel import Engine
from segcal.cases.records import FOLDER as RECORDS
from segcal.cases.records import content_digest
from segcal.scale.ledger import ENDING
from segcal.scale.part import FACTS, FOLDER, Identified, Part

# Where jobs write, and the names of what submitit writes there.
LOGS = "logs"
_LOG = re.compile(r"\d+(_\d+)*_.+|[0-9a-f]{32}\.pkl|submission_file_[0-9a-f]{32}\.sh")


@contextmanager
def kept_beside(
    output: Path, collections: Sequence[Identified], settings: dict[str, str], engine: Engine
) -> Iterator[Part]:
    """Give an engine whose results are kept beside an output until all are there: the same command goes on."""
    place = output.absolute().with_name(f"{output.name}.parts")
    with Part(place, collections, 0, 1, settings, engine) as part:
        yield part
    remove_parts(place, None)


def remove_parts(place: Path, result: Path | None) -> None:
    """Remove a folder of parts, or a part by itself, of which `result` was made."""
    files = [path for path in place.rglob("*") if path.is_symlink() or not path.is_dir()]
    known = [path for path in files if _is_known(place, path, result)]
    if len(known) == len(files):
        with temporary(place.parent) as beside:
            put(place, beside / place.name)
        return
    for path in known:
        path.unlink()
    folders = [path for path in place.rglob("*") if path.is_dir() and not path.is_symlink()]
    for folder in sorted(folders, key=lambda path: -len(path.parts)):
        with suppress(OSError):  # something is in it
            folder.rmdir()


def _is_known(place: Path, path: Path, result: Path | None) -> bool:
    names, own = path.relative_to(place).parts, path.parent.name
    if path.is_symlink() or not path.is_file():
        return False
    if own == FOLDER:
        return path.name == FACTS or path.suffix == ENDING
    if names[0] == LOGS:
        return _LOG.fullmatch(path.name) is not None
    if own == RECORDS:
        return path.suffix == ".json"
    return result is not None and content_digest(path) == content_digest(result.joinpath(*names[1:]))
