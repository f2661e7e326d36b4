"""A shard of a run over cases: every N-th case, worked on by itself, its results kept for :func:`segcal.merge`.

``OUT/.part/part.json`` says which shard of what it is; blocks of results lie beside it (:mod:`segcal.scale.cache`). Run
again, a shard goes on with the cases that are missing, that failed, or whose files have changed since.

From a merged shard segcal removes its own files: facts, blocks of results, records, and files of submitit. It also
removes files that the result has under the same name and with the same content. If there is nothing else, the folder
goes at once or not at all. Otherwise what is known goes one by one, and a user's files stay where they are.
"""

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Protocol, Self, TypeVar, runtime_checkable

import msgspec

from segcal.arguments import typed
from segcal.atomic import put, temporary, write_text
from segcal.cases.base import Cases
from segcal.cases.parallel import Engine, Outcome, Workers, outcomes_of
from segcal.cases.records import FOLDER as RECORDS
from segcal.cases.records import Records, content_digest
from segcal.documents import json_text, read_json
from segcal.errors import InputError
from segcal.scale.cache import ENDING, CaseCache
from segcal.target import claim, entries
from segcal.version import __version__

FOLDER = ".part"
FACTS = "part.json"
FORMAT, VERSION = "segcal-part", 1
# Where jobs write, and the names of what submitit writes there.
LOGS = "logs"
_LOG = re.compile(r"\d+(_\d+)*_.+|[0-9a-f]{32}\.pkl|submission_file_[0-9a-f]{32}\.sh")

Some = TypeVar("Some", bound=Cases)
Count = Annotated[int, msgspec.Meta(ge=0)]


class PartFacts(msgspec.Struct, frozen=True):
    """The facts about a shard.

    Attributes:
        segcal: the version that made it.
        part: its number, from 0, `of` so many.
        cases: how many cases there are in all shards.
        ids: a digest of their names.
        settings: what decides results besides the files of the cases, as JSON texts by name.
        folder: where it was written; names of result files are relative to it.
        finished: whether every case was worked on.
    """

    format: str
    version: int
    segcal: str
    part: Count
    of: Count
    cases: Count
    ids: str
    settings: dict[str, str]
    folder: str
    finished: bool

    @property
    def name(self) -> str:
        """Return the shard in words."""
        return f"shard {self.part} of {self.of}"


@runtime_checkable
class Identified(Protocol):
    """The items of a shard: cases, or others that have names and are known by digests."""

    @property
    def ids(self) -> tuple[str, ...]:
        """The names."""

    def identity(self, case_id: str) -> str:
        """Return a digest of everything that decides the result of one of them."""


class Keys:
    """Digests of what cases are read from, each in the first collection that has it."""

    def __init__(self, collections: Sequence[Identified]) -> None:
        self._cases: dict[str, Identified] = {}
        for cases in collections:
            for case_id in cases.ids:
                first = self._cases.setdefault(case_id, cases)
                if first is not cases and first.identity(case_id) != cases.identity(case_id):
                    raise InputError(
                        f"case {case_id!r} is in two folders, but shards know cases by their names. Rename one of them."
                    )
        self.ids = sorted(self._cases)
        self.digest = hashlib.sha256("\n".join(self.ids).encode("utf-8", "surrogatepass")).hexdigest()[:32]

    def of(self, case_id: str) -> str:
        """Return the digest of a case."""
        return self._cases[case_id].identity(case_id)


class Part(Engine):
    """Works on the cases of a shard and keeps their results; pass it as `workers` to what goes over cases.

    Args:
        folder: where the shard is kept.
        collections: the cases, all of them; of a fit, the validation cases too where they are others.
        number: of the shard, from 0.
        of: how many shards there are.
        settings: what else decides the results; shards of other settings are not put together.
        workers: what works on the cases of the shard.
        alone: whether the folder must be empty, or of this shard.

    >>> import numpy as np, tempfile, segcal
    >>> cases = segcal.ArrayCases([np.eye(2, 5)] * 3)
    >>> with tempfile.TemporaryDirectory() as folder, Part(folder, [cases], 0, 2) as part:
    ...     segcal.audit(segcal.make_calibrator("ts", 2), cases, part).voxels
    10
    """

    @typed
    def __init__(
        self,
        folder: str | Path,
        collections: Sequence[Identified],
        number: int = 0,
        of: int = 1,
        settings: dict[str, str] | None = None,
        workers: Workers = 1,
        alone: bool = True,
    ) -> None:
        self.folder: Path = Path(folder)
        self._keys, self._workers, self._alone = Keys(collections), workers, alone
        ids, place = self._keys.ids, str(self.folder.absolute())
        if of < 1 or not 0 <= number < of:
            raise InputError(
                f"part_id is {number} and num_parts {of}, but shards are numbered from 0 to num_parts - 1. "
                "Name a shard that is there."
            )
        if of > len(ids):
            raise InputError(f"num_parts is {of}, but there are {len(ids)} cases. Use at most {len(ids)} shards.")
        self.ids, self.partial = frozenset(ids[number::of]), of > 1
        self._facts = PartFacts(
            FORMAT, VERSION, __version__, number, of, len(ids), self._keys.digest, settings or {}, place, False
        )

    def __enter__(self) -> Self:
        place = self.folder / FOLDER
        if (place / FACTS).exists():
            found = read_facts(self.folder)
            other = differing(found, self._facts)
            if other is not None:
                raise InputError(
                    f"{self.folder} holds {found.name} with another {other}, but results would be mixed. Name a new "
                    "folder."
                )
        elif self._alone and (others := [name for name in entries(self.folder) if name != FOLDER]):
            raise InputError(
                f"{self.folder} holds {others[0]}, but a shard needs a folder of its own. Name a new folder."
            )
        with ExitStack() as held:
            held.enter_context(claim(place))
            self._cache = CaseCache(place)
            self._write(finished=False)
            self._held = held.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: Any) -> None:
        if kind is None:
            self._write(finished=True)
        self._held.__exit__(kind, *rest)

    def take(self, cases: Some) -> Some:
        """Return the cases of this shard."""
        return cases.subset(case_id for case_id in cases.ids if case_id in self.ids)

    def outcomes(self, ids: Sequence[str], function: Callable[[str], Any], about: str) -> Iterator[Outcome]:
        """Yield what is known, and work on the rest of what belongs to the shard."""
        own = [case_id for case_id in ids if case_id in self.ids]
        known = {name for name in own if self._cache.has(about, name, self._keys.of) and self._is_whole(name)}
        rest = iter(outcomes_of([case_id for case_id in own if case_id not in known], function, self._workers, about))
        try:
            for case_id in own:
                if case_id in known:
                    yield case_id, partial(self._cache.read, about, case_id)
                    continue
                key = self._keys.of(case_id)
                _, outcome = next(rest)
                yield case_id, partial(self._cache.keep, about, case_id, key, outcome)
        finally:
            self._cache.flush()

    def fresh(self) -> Workers:
        """Return what works on the cases of the shard."""
        return self._workers.fresh() if isinstance(self._workers, Engine) else self._workers

    def _is_whole(self, case_id: str) -> bool:
        """Whether the files that were written of a case are as they were, if any were."""
        record = Records(self.folder).find(case_id)
        return record is None or Records(self.folder).done(case_id, record.made_from) is not None

    def _write(self, finished: bool) -> None:
        facts = msgspec.structs.replace(self._facts, finished=finished)
        write_text(self.folder / FOLDER / FACTS, json_text(msgspec.to_builtins(facts), indent=1) + "\n")


def differing(one: PartFacts, other: PartFacts) -> str | None:
    """Return in what two shards of one run differ that must not; None if in nothing."""
    for name, title in (("version", "form"), ("segcal", "version of segcal"), ("of", "number of shards")):
        if getattr(one, name) != getattr(other, name):
            return f"{title} ({getattr(one, name)}, not {getattr(other, name)})"
    for name in sorted({*one.settings, *other.settings}):
        if one.settings.get(name) != other.settings.get(name):
            shown = [str(settings.get(name))[:80] for settings in (one.settings, other.settings)]
            return f"{name} ({shown[0]}, not {shown[1]})"
    if one.ids != other.ids:
        return f"set of cases ({one.cases}, not {other.cases})" if one.cases != other.cases else "set of cases"
    return None


def read_facts(folder: Path) -> PartFacts:
    """Return what a shard says of itself."""
    path = inside(folder, FOLDER, FACTS)
    if not path.is_file():
        raise InputError(f"{folder} is not a shard of a run, but one is needed. Name folders written with --num-parts.")
    content = read_json(path)
    try:
        facts = msgspec.convert(content, PartFacts)
    except ValueError as error:  # also of lone surrogates
        raise InputError(f"{path} is damaged ({error}), but it says what the shard is. Run the shard again.") from None
    if facts.format != FORMAT:
        raise InputError(
            f"{path} is {facts.format!r}, but {FORMAT!r} is needed. Name folders written with --num-parts."
        )
    return facts


def inside(part: Path, *names: str) -> Path:
    """Return a path in a shard; refuse one that leads out of it, by its name or by a link."""
    path = part.joinpath(*names)
    if ".." in names or not path.is_relative_to(part) or path.resolve() != part.resolve().joinpath(*names):
        raise InputError(
            f"{path} leads out of the shard {part}, but a shard is one folder without links. Run the shard again."
        )
    return path


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
    """Remove a folder of shards, or a shard by itself, of which `result` was made."""
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
