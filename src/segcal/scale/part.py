"""A part of a run over cases: every N-th case, worked on by itself, its results kept for :func:`segcal.merge`.

``OUT/.part/part.json`` says which part of what it is; blocks of results lie beside it (:mod:`segcal.scale.ledger`).
Run again, a part goes on with the cases that are missing, that failed, or whose files have changed since.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Protocol, Self, TypeVar, runtime_checkable

import msgspec

from segcal.arguments import typed
from segcal.atomic import write_text
from segcal.cases.base import CaseError, Cases
from segcal.cases.parallel import Engine, Outcome, Workers, outcomes_of
from segcal.documents import json_text, read_json
from segcal.errors import InputError
from segcal.scale.ledger import Ledger
from segcal.target import claim, entries
from segcal.version import __version__

FOLDER = ".part"
FACTS = "part.json"
FORMAT, VERSION = "segcal-part", 1

Some = TypeVar("Some", bound=Cases)
Count = Annotated[int, msgspec.Meta(ge=0)]


class PartFacts(msgspec.Struct, frozen=True):
    """What a part is.

    Attributes:
        segcal: the version that made it.
        part: its number, from 0, `of` so many.
        cases: how many cases there are in all parts.
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
        """Return the part in words."""
        return f"part {self.part} of {self.of}"


@runtime_checkable
class Identified(Protocol):
    """What a part is of: cases, or other things that have names and are known by digests."""

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
                        f"case {case_id!r} is in two folders, but parts know cases by their names. Rename one of them."
                    )
        self.ids = sorted(self._cases)

    def of(self, case_id: str) -> str:
        """Return the digest of a case."""
        return self._cases[case_id].identity(case_id)


class Part(Engine):
    """Works on the cases of a part and keeps their results; pass it as `workers` to what goes over cases.

    Args:
        folder: where the part is kept.
        collections: the cases, all of them; of a fit, the validation cases too where they are others.
        number: of the part, from 0.
        of: how many parts there are.
        settings: what else decides the results; parts of other settings are not put together.
        workers: what works on the cases of the part.
        alone: whether the folder must be empty, or of this part.

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
        self.folder, self._keys, self._workers, self._alone = Path(folder), Keys(collections), workers, alone
        ids = self._keys.ids
        check_part(number, of, len(ids))
        self.ids, self.partial = frozenset(ids[number::of]), of > 1
        place = str(self.folder.absolute())
        self.facts = PartFacts(
            FORMAT, VERSION, __version__, number, of, len(ids), digest_of(ids), settings or {}, place, False
        )

    def __enter__(self) -> Self:
        place = self.folder / FOLDER
        if (place / FACTS).exists():
            self._check_same(read_facts(self.folder))
        elif self._alone and (other := [name for name in entries(self.folder) if name != FOLDER]):
            raise InputError(
                f"{self.folder} holds {other[0]}, but a part needs a folder of its own. Name a new folder."
            )
        with ExitStack() as held:
            held.enter_context(claim(place))
            self._ledger = Ledger(place)
            self._write(finished=False)
            self._held = held.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: Any) -> None:
        if kind is None:
            self._write(finished=True)
        self._held.__exit__(kind, *rest)

    def take(self, cases: Some) -> Some:
        """Return the cases of this part."""
        return cases.subset(case_id for case_id in cases.ids if case_id in self.ids)

    def outcomes(self, ids: Sequence[str], function: Callable[[str], Any], about: str) -> Iterator[Outcome]:
        """Yield what is known, and work on the rest of what belongs to the part."""
        own = [case_id for case_id in ids if case_id in self.ids]
        keys = {case_id: self._keys.of(case_id) for case_id in own if (about, case_id) in self._ledger.entries}
        known = {case_id for case_id, key in keys.items() if self._is_known(about, case_id, key)}
        rest = iter(outcomes_of([case_id for case_id in own if case_id not in known], function, self._workers, about))
        try:
            for case_id in own:
                if case_id in known:
                    yield case_id, partial(self._ledger.read, about, case_id)
                    continue
                key = self._keys.of(case_id)
                _, outcome = next(rest)
                yield case_id, partial(self._keep, about, case_id, key, outcome)
        finally:
            self._ledger.flush()

    def fresh(self) -> Workers:
        """Return what works on the cases of the part."""
        return self._workers.fresh() if isinstance(self._workers, Engine) else self._workers

    def _is_known(self, about: str, case_id: str, key: str) -> bool:
        line = self._ledger.entries[about, case_id].line
        return line.key == key and not line.failed

    def _keep(self, about: str, case_id: str, key: str, outcome: Callable[[], Any]) -> Any:
        try:
            result = outcome()
        except CaseError as error:
            self._ledger.add(about, case_id, key, error)
            raise
        self._ledger.add(about, case_id, key, result)
        return result

    def _write(self, finished: bool) -> None:
        write_facts(self.folder, msgspec.structs.replace(self.facts, finished=finished))

    def _check_same(self, found: PartFacts) -> None:
        other = differing(found, self.facts)
        if other is not None:
            raise InputError(
                f"{self.folder} holds {found.name} with another {other}, but results would be mixed. Name a new folder."
            )


def check_part(number: int, of: int, cases: int) -> None:
    """Refuse a part that is not there, or that would be empty."""
    if of < 1 or not 0 <= number < of:
        raise InputError(
            f"part_id is {number} and num_parts {of}, but parts are numbered from 0 to num_parts - 1. "
            "Name a part that is there."
        )
    if of > cases:
        raise InputError(f"num_parts is {of}, but there are {cases} cases. Use at most {cases} parts.")


def differing(one: PartFacts, other: PartFacts) -> str | None:
    """Return in what two parts of one run differ that must not; None if in nothing."""
    for name, title in (("version", "form"), ("segcal", "version of segcal"), ("of", "number of parts")):
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
    """Return what a part says of itself."""
    path = inside(folder, FOLDER, FACTS)
    if not path.is_file():
        raise InputError(f"{folder} is not a part of a run, but one is needed. Name folders written with --num-parts.")
    content = read_json(path)
    try:
        facts = msgspec.convert(content, PartFacts)
    except ValueError as error:  # also of lone surrogates
        raise InputError(f"{path} is damaged ({error}), but it says what the part is. Run the part again.") from None
    if facts.format != FORMAT:
        raise InputError(
            f"{path} is {facts.format!r}, but {FORMAT!r} is needed. Name folders written with --num-parts."
        )
    return facts


def inside(part: Path, *names: str) -> Path:
    """Return a path in a part; refuse one that leads out of it, by its name or by a link."""
    path = part.joinpath(*names)
    if ".." in names or not path.is_relative_to(part) or path.resolve() != part.resolve().joinpath(*names):
        raise InputError(
            f"{path} leads out of the part {part}, but a part is one folder without links. Run the part again."
        )
    return path


def write_facts(folder: Path, facts: PartFacts) -> None:
    """Write what a part says of itself."""
    write_text(folder / FOLDER / FACTS, json_text(msgspec.to_builtins(facts), indent=1) + "\n")


def digest_of(ids: Sequence[str]) -> str:
    """Return a digest of names, whatever their order."""
    return hashlib.sha256("\n".join(sorted(ids)).encode("utf-8", "surrogatepass")).hexdigest()[:32]
