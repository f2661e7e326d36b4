"""Dividing cases into calibration, validation and test: by a seeded split that keeps groups together, or by a file.

Two phases of one patient, frames of one video or images of one site are not independent. A calibrator that saw one has
seen some of the other. Groups are declared by a mapping, a regular expression with one group on the case id, or a CSV
file with the columns ``id,group``.

``splits.json`` names the cases of each subset, so that a later run uses the same ones:
``{"format": "segcal-splits", "version": 1, "seed": 0, "cal": [ids], "val": [ids], "test": [ids]}``
"""

import csv
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Generic, NamedTuple, Protocol, Self, TypeVar

import numpy as np

from segcal.atomic import remove_leftovers, write_text
from segcal.checks import check_seed
from segcal.documents import read_json
from segcal.errors import InputError

Grouping = Mapping[str, str] | str | Path
FORMAT, VERSION = "segcal-splits", 1


class Divisible(Protocol):
    """A collection that has subsets."""

    ids: tuple[str, ...]

    def subset(self, ids: Iterable[str]) -> Self:
        """Return the subset with these ids."""


Part = TypeVar("Part", bound=Divisible)


class Split(NamedTuple, Generic[Part]):
    """Three disjoint collections of cases."""

    cal: Part
    val: Part
    test: Part


def resolve_groups(group: Grouping, ids: Sequence[str], what: str = "group") -> dict[str, str]:
    r"""Return the group of every case.

    Args:
        group: case id -> group; or a regular expression with one group; or the path of a CSV file (a ``Path``, or a
            text that ends in ``.csv``).
        ids: the cases.
        what: the name of a group, and of its column in a CSV file; "site" for sites.

    >>> resolve_groups(r"(patient\d+)_", ["patient01_a", "patient01_b"])
    {'patient01_a': 'patient01', 'patient01_b': 'patient01'}
    """
    if isinstance(group, Path) or (isinstance(group, str) and group.lower().endswith(".csv")):
        return _complete(_read_csv(Path(group), what), ids, f"{what} file {group}", what)
    return _match(group, ids, what) if isinstance(group, str) else _complete(group, ids, what, what)


def check_nested(groups: Mapping[str, str], sites: Mapping[str, str]) -> None:
    """Refuse a group with cases of two sites: where one is held out, the other would tell of it."""
    home: dict[str, str] = {}
    for case_id, site in sites.items():
        group = groups.get(case_id)
        if group is not None and home.setdefault(group, site) != site:
            raise InputError(
                f"group {group!r} has cases of the sites {home[group]!r} and {site!r}, but a group lies in one site. "
                "Declare sites that keep groups whole."
            )


def draw_groups(
    ids: Sequence[str], groups: Mapping[str, str], cal: int, val: int, seed: int
) -> tuple[list[str], list[str], list[str]]:
    """Draw whole groups into three subsets of at most `cal`, at most `val`, and the remaining cases."""
    members: dict[str, list[str]] = {}
    for case_id in ids:
        members.setdefault(groups.get(case_id, f"\0{case_id}"), []).append(case_id)
    order = [list(members)[i] for i in np.random.default_rng(check_seed(seed)).permutation(len(members))]
    parts: tuple[list[str], list[str], list[str]] = ([], [], [])
    room = [cal, val, len(ids)]
    for name in order:
        part = next(k for k in range(3) if room[k] >= len(members[name]))
        room[part] -= len(members[name])
        parts[part].extend(members[name])
    if not parts[0]:
        raise InputError(
            f"cal is {cal}, but the smallest group has {min(map(len, members.values()))} cases. "
            "Groups are kept whole: ask for more calibration cases."
        )
    return parts


def save_split(split: Split[Part], path: str | Path, seed: int | None = None) -> None:
    """Write which case is in which subset, and the seed it was drawn with."""
    parts = {name: list(part.ids) for name, part in split._asdict().items()}
    remove_leftovers(Path(path).parent)
    write_text(path, json.dumps({"format": FORMAT, "version": VERSION, "seed": seed, **parts}, indent=1) + "\n")


def load_split(cases: Part, path: str | Path) -> Split[Part]:
    """Divide cases as :func:`save_split` wrote; the file must name every case, and no other."""
    content = read_json(Path(path))
    if content.get("format") != FORMAT or content.get("version") != VERSION:
        raise InputError(
            f"{path} has format {content.get('format')!r} version {content.get('version')!r}, but {FORMAT!r} version "
            f"{VERSION} is needed. Make the split again."
        )
    parts = []
    for name in Split._fields:
        ids = content.get(name)
        if not isinstance(ids, list) or not all(isinstance(case_id, str) for case_id in ids):
            raise InputError(f"{path} has no list of ids under {name!r}, but it is needed. Make the split again.")
        parts.append(ids)
    named = Counter(case_id for part in parts for case_id in part)
    twice = sorted(case_id for case_id, count in named.items() if count > 1)
    if twice:
        raise InputError(
            f"{path} names {_listed(twice)} more than once, but subsets are disjoint. Make the split again."
        )
    absent, new = sorted(set(named) - set(cases.ids)), sorted(set(cases.ids) - set(named))
    if absent or new:
        raise InputError(
            f"{path} names {len(absent)} cases that are not there ({_listed(absent)}) and leaves out {len(new)} that "
            f"are ({_listed(new)}), but it must name all. Make the split again, or open the cases it was made for."
        )
    return Split(*(cases.subset(part) for part in parts))


def _match(pattern: str, ids: Sequence[str], what: str) -> dict[str, str]:
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise InputError(f"{what} {pattern!r} is not a regular expression ({error}). Correct the pattern.") from None
    if compiled.groups != 1:
        raise InputError(
            f"{what} {pattern!r} has {compiled.groups} groups, but exactly one is needed. "
            rf"Put parentheses around the part of the id that names the {what}, as in '(patient\d+)_'."
        )
    found = {case_id: match[1] for case_id in ids if (match := compiled.search(case_id)) and match[1] is not None}
    missing = [case_id for case_id in ids if case_id not in found]
    if missing:
        raise InputError(
            f"{what} {pattern!r} does not match {len(missing)} of {len(ids)} ids ({_listed(missing)}), but every case "
            f"needs a {what}. Widen the pattern."
        )
    return found


def _read_csv(path: Path, what: str) -> dict[str, str]:
    if not path.is_file():
        raise InputError(f"{what} file {path} is missing, but a CSV file is needed. Check the path.")
    groups: dict[str, str] = {}
    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            rows = csv.DictReader(stream)
            columns = rows.fieldnames or []
            if "id" not in columns or what not in columns:
                named = ", ".join(columns)[:80] or "none"
                raise InputError(
                    f"{what} file {path} has the columns {named}, but id and {what} are needed. "
                    "Name them in the first line."
                )
            for row in rows:
                if groups.setdefault(row["id"], row[what]) != row[what]:
                    who = str(row["id"])[:80]
                    raise InputError(
                        f"{what} file {path} puts {who!r} in two {what}s, but a case has one. Remove a line."
                    )
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{what} file {path} is not a CSV text file ({error}). Save it as UTF-8 CSV.") from None
    return groups


def _complete(groups: Mapping[str, str], ids: Sequence[str], name: str, what: str) -> dict[str, str]:
    missing = [case_id for case_id in ids if not groups.get(case_id)]
    if missing:
        raise InputError(
            f"{name} has no {what} for {len(missing)} of {len(ids)} cases ({_listed(missing)}), but every case needs "
            f"one. Add them; a case that stands alone gets a {what} of its own."
        )
    return {case_id: str(groups[case_id]) for case_id in ids}


def _listed(ids: Sequence[str]) -> str:
    return (", ".join(ids[:5]) + (", ..." if len(ids) > 5 else "")) or "none"
