"""Groups of cases that must stay in one split, and the seeded draw that keeps them together.

Two phases of one patient, frames of one video or images of one site are not independent: a calibrator that saw one has
seen a part of the other. A group is named by a mapping, by a regular expression with one group on the case id, or by a
CSV file with the columns ``id,group``.
"""

import csv
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from segcal.errors import InputError

Grouping = Mapping[str, str] | str | Path


def resolve_groups(group: Grouping, ids: Sequence[str]) -> dict[str, str]:
    r"""Return the group of every case.

    Args:
        group: case id -> group; or a regular expression with one group; or the path of a CSV file (a ``Path``, or a
            text that ends in ``.csv``).
        ids: the cases.

    >>> resolve_groups(r"(patient\d+)_", ["patient01_a", "patient01_b"])
    {'patient01_a': 'patient01', 'patient01_b': 'patient01'}
    """
    if isinstance(group, Path) or (isinstance(group, str) and group.lower().endswith(".csv")):
        return _complete(_read_csv(Path(group)), ids, f"group file {group}")
    if isinstance(group, str):
        return _match(group, ids)
    return _complete(group, ids, "group")


def draw_groups(
    ids: Sequence[str], groups: Mapping[str, str], cal: int, val: int, seed: int
) -> tuple[list[str], list[str], list[str]]:
    """Draw whole groups into three parts of at most `cal`, at most `val`, and the remaining cases."""
    members: dict[str, list[str]] = {}
    for case_id in ids:
        members.setdefault(groups.get(case_id, f"\0{case_id}"), []).append(case_id)
    order = [list(members)[i] for i in np.random.default_rng(seed).permutation(len(members))]
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


def _match(pattern: str, ids: Sequence[str]) -> dict[str, str]:
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise InputError(f"group {pattern!r} is not a regular expression ({error}). Correct the pattern.") from None
    if compiled.groups != 1:
        raise InputError(
            f"group {pattern!r} has {compiled.groups} groups, but exactly one is needed. "
            r"Put parentheses around the part of the id that names the group, as in '(patient\d+)_'."
        )
    found = {case_id: compiled.search(case_id) for case_id in ids}
    missing = [case_id for case_id, match in found.items() if match is None or match[1] is None]
    if missing:
        raise InputError(
            f"group {pattern!r} does not match {len(missing)} of {len(ids)} ids ({_listed(missing)}), but every case "
            "needs a group. Widen the pattern."
        )
    return {case_id: match[1] for case_id, match in found.items() if match is not None}


def _read_csv(path: Path) -> dict[str, str]:
    if not path.is_file():
        raise InputError(f"group file {path} is missing, but a CSV file is needed. Check the path.")
    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            rows = csv.DictReader(stream)
            columns = rows.fieldnames or []
            if "id" not in columns or "group" not in columns:
                raise InputError(
                    f"group file {path} has the columns {', '.join(columns) or 'none'}, but id and group are needed. "
                    "Name them in the first line."
                )
            pairs = [(row["id"], row["group"]) for row in rows]
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"group file {path} is not a CSV text file ({error}). Save it as UTF-8 CSV.") from None
    groups: dict[str, str] = {}
    for case_id, name in pairs:
        if groups.setdefault(case_id, name) != name:
            raise InputError(f"group file {path} puts {case_id!r} in two groups, but a case has one. Remove a line.")
    return groups


def _complete(groups: Mapping[str, str], ids: Sequence[str], name: str) -> dict[str, str]:
    missing = [case_id for case_id in ids if not groups.get(case_id)]
    if missing:
        raise InputError(
            f"{name} has no group for {len(missing)} of {len(ids)} cases ({_listed(missing)}), but every case needs "
            "one. Add them; a case that stands alone gets a group of its own."
        )
    return {case_id: str(groups[case_id]) for case_id in ids}


def _listed(ids: Sequence[str]) -> str:
    return ", ".join(ids[:5]) + (", ..." if len(ids) > 5 else "")
