"""Shards of a run, put together: the results that one process would have had, in the order that it would have had.

Refused, by name, are folders that are no shards, and shards that did not finish, are there twice, or whose cases have
changed since. So are shards of different versions, settings or cases, and missing ones.

A shard may come from anywhere, so only results are taken from it. The caller says which cases, options and target are
meant; those of the shard are only compared. Files are read inside the shard alone. They are put where the function that
made them puts those of the case (its `places`), or where nothing but its own record is.
"""

import shutil
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path, PurePath
from typing import Any

import msgspec

from segcal.arguments import typed
from segcal.atomic import put, temporary
from segcal.cases.parallel import Engine, Outcome, Workers, outcomes_of
from segcal.cases.records import FOLDER as RECORDS
from segcal.cases.records import Records
from segcal.decisions.masks import DecidedCase
from segcal.errors import InputError
from segcal.evaluation.apply import AppliedCase
from segcal.scale.cache import CaseCache
from segcal.scale.part import FOLDER, Identified, Keys, PartFacts, differing, inside, read_facts
from segcal.version import __version__


class Merged(Engine):
    """The results of shards; pass it as `workers` to what made them, with all cases.

    Files that belong to a result are copied from its shard to `folder`. What no shard has anything of is done by
    `workers`: such as what comes after a fit, for which shards keep voxels.
    """

    def __init__(
        self, parts: Sequence[Path], collections: Sequence[Identified], folder: Path | None = None, workers: Workers = 1
    ) -> None:
        self._folder, self._workers, self._facts, keys = folder, workers, check_parts(parts), Keys(collections)
        first = self._facts[parts[0]]
        if first.ids != keys.digest:
            now = f"{len(keys.ids)} cases" if len(keys.ids) != first.cases else "others of the same number"
            raise InputError(
                f"{parts[0]} is stale: it is a shard of {first.cases} cases, but there are {now} now. Run the shards "
                "again."
            )
        self._caches = {part: CaseCache(part / FOLDER) for part in self._facts}
        for part, cache in self._caches.items():
            _check_fresh(part, cache, keys)
        self._of = {key: part for part, cache in self._caches.items() for key in cache.entries}
        self._known = {about for about, _ in self._of}

    def outcomes(self, ids: Sequence[str], function: Callable[[str], Any], about: str) -> Iterator[Outcome]:
        """Yield what the shards have."""
        if about not in self._known:
            yield from outcomes_of(ids, function, self._workers, about)
            return
        for case_id in ids:
            yield case_id, partial(self._read, about, case_id, getattr(function, "places", lambda _: ()))

    def fresh(self) -> Workers:
        """Return what does the work that was not done in parts."""
        return self._workers.fresh() if isinstance(self._workers, Engine) else self._workers

    def _read(self, about: str, case_id: str, places: Callable[[str], Collection[Path]]) -> Any:
        if (about, case_id) not in self._of:
            raise InputError(
                f"case {case_id!r} is in none of the {len(self._caches)} shards, but all cases are needed. "
                "Run the shards again."
            )
        part = self._of[about, case_id]
        return self._here(part, case_id, self._caches[part].read(about, case_id), places(case_id))

    def _here(self, part: Path, case_id: str, result: Any, places: Collection[Path]) -> Any:
        """Return a result whose files, if it has any, are in the folder that results go to."""
        if self._folder is None:
            return result
        if type(result) is tuple:
            return tuple(self._here(part, case_id, each, places) for each in result)
        if isinstance(result, Path):
            lay = PurePath(self._facts[part].folder)  # when it was made
            if not result.is_relative_to(lay):
                raise InputError(
                    f"{part} names a result {result} outside of itself, but it must be in it. Run the shard again."
                )
            return _copied(part, self._folder, result.relative_to(lay), places)
        if isinstance(result, AppliedCase):
            return AppliedCase(result.voxels, result.flips, _taken_over(part, self._folder, case_id))
        if isinstance(result, DecidedCase):
            _taken_over(part, self._folder, case_id)
        return result


@typed
def merge(
    parts: Sequence[str | Path], *collections: Identified, folder: str | Path | None = None, workers: Workers = 1
) -> Merged:
    """Put the shards of a run together: what is returned goes to the function that made them, as its `workers`.

    Args:
        parts: the folders that :class:`segcal.Part` wrote, in any order.
        *collections: the cases, as they were given to the shards.
        folder: where files go that belong to results, such as calibrated predictions.
        workers: what does the work that was not done in parts.

    >>> import numpy as np, tempfile, segcal
    >>> cases, calibrator = segcal.ArrayCases([np.eye(2, 5)] * 3), segcal.make_calibrator("ts", 2)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for number in (1, 0):
    ...         with segcal.Part(f"{folder}/{number}", [cases], number, 2) as part:
    ...             _ = segcal.audit(calibrator, cases, part)
    ...     segcal.audit(calibrator, cases, merge([f"{folder}/0", f"{folder}/1"], cases)).voxels
    15
    """
    return Merged([Path(part) for part in parts], collections, None if folder is None else Path(folder), workers)


def check_parts(parts: Sequence[Path], settings: dict[str, str] | None = None) -> dict[Path, PartFacts]:
    """Return the facts of shards; refuse those that are not all the shards of one run, or of other settings."""
    if not parts:
        raise InputError("parts is empty, but at least one shard is needed. Name the folders of the shards.")
    found = {part: read_facts(part) for part in parts}
    first, facts = parts[0], found[parts[0]]
    if facts.segcal != __version__:
        raise InputError(
            f"{first} was made by segcal {facts.segcal}, but this is {__version__}. "
            "Use the version that made the shards, or run them again."
        )
    for part, own in found.items():
        other = differing(own, facts)
        if other is not None:
            raise InputError(
                f"{part} is of another run than {first}: it has another {other}, but shards of one run are needed. "
                "Name the shards of one run."
            )
        if not own.finished:
            raise InputError(
                f"{part} did not finish, but whole shards are needed. Run the command of {own.name} again."
            )
    _check_numbers(parts, [found[part].part for part in parts], facts.of)
    other = None if settings is None else differing(facts, msgspec.structs.replace(facts, settings=settings))
    if other is not None:
        raise InputError(
            f"{first} was made with another {other}, but the command must be the one that made the shards. Correct it, "
            "or name other shards."
        )
    return found


def _check_numbers(parts: Sequence[Path], numbers: Sequence[int], of: int) -> None:
    for place, number in enumerate(numbers):
        if number in numbers[:place]:
            twice = parts[numbers.index(number)]
            raise InputError(
                f"{parts[place]} and {twice} are both shard {number}, but each is needed once. Leave one of them out."
            )
    beyond = next((place for place, number in enumerate(numbers) if number >= of), None)
    if beyond is not None:
        raise InputError(f"{parts[beyond]} is shard {numbers[beyond]} of {of}, but they count from 0. Run it again.")
    missing = of - len(numbers)
    if missing:
        first = islice((number for number in range(of) if number not in numbers), 10)  # there may be any number
        listed = ", ".join(map(str, first)) + (", ..." if missing > 10 else "")
        raise InputError(
            f"of {of} shards {missing} {'is' if missing == 1 else 'are'} missing ({listed}), but all "
            "are needed. Run them, and name their folders."
        )


def _check_fresh(part: Path, cache: CaseCache, keys: Keys) -> None:
    known: dict[str, str] = {}
    for (_, case_id), entry in cache.entries.items():
        now = known.setdefault(case_id, keys.of(case_id))
        if entry.line.key != now:
            raise InputError(
                f"{part} is stale: case {case_id!r} has changed since, its files or how they are read, but results "
                "must be of what is there. Run the shard again."
            )


def _copied(part: Path, folder: Path, name: PurePath, places: Collection[Path]) -> Path:
    source, target = inside(part, *name.parts), folder / name
    if target not in places:
        if target.exists():  # done before, and not asked for
            return target
        raise InputError(f"{part} names a result {name}, but nothing of this name is needed. Run the shard again.")
    target.parent.mkdir(parents=True, exist_ok=True)
    with temporary(target.parent) as beside:
        return put(_copy(source, beside / name.name), target)


def _taken_over(part: Path, folder: Path, case_id: str) -> tuple[str, ...]:
    """Copy what segcal apply wrote of a case, with its record, and return the files."""
    inside(part, RECORDS, f"{case_id}.json")
    record = Records(part).find(case_id)
    sources = {} if record is None else {name: inside(part, *PurePath(name).parts) for name in record.files}
    hidden = any(each.startswith(".") for name in sources for each in PurePath(name).parts)
    if record is None or hidden or Records(part).done(case_id, record.made_from) is None:
        raise InputError(f"{part} has no complete files of case {case_id!r}, but a record of it. Run the shard again.")
    Records(folder).require_own(case_id, sources)
    with temporary(folder) as beside:
        for name, source in sources.items():
            _copy(source, beside / name)
        return tuple(map(str, Records(folder).place(case_id, record.made_from, beside, list(record.files))))


def _copy(source: Path, target: Path) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    link = next((path for path in source.rglob("*") if path.is_symlink()), None)
    if link is not None or not (source.is_dir() or source.is_file()):
        raise InputError(f"{link or source} is a link, or no file, but results are plain files. Run the shard again.")
    if source.is_dir():
        shutil.copytree(source, target)
    else:
        shutil.copyfile(source, target)
    return target
