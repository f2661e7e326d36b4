"""Splits that are kept: ``splits.json`` names the cases of each part, so that a later run uses the same ones.

``{"format": "segcal-splits", "version": 1, "seed": 0, "cal": [ids], "val": [ids], "test": [ids]}``
"""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from segcal.atomic import write_text
from segcal.cases.base import Cases, Split
from segcal.documents import read_json
from segcal.errors import InputError

FORMAT = "segcal-splits"
VERSION = 1
PARTS = ("cal", "val", "test")


def save_split(split: Split, path: str | Path, seed: int | None = None) -> None:
    """Write which case is in which part.

    Args:
        split: what :meth:`Cases.split` returned.
        path: the JSON file to write.
        seed: the seed it was drawn with, kept for the reader.
    """
    content: dict[str, Any] = {"format": FORMAT, "version": VERSION, "seed": seed}
    content.update({name: list(part.ids) for name, part in zip(PARTS, split, strict=True)})
    write_text(path, json.dumps(content, indent=1) + "\n")


def load_split(cases: Cases, path: str | Path) -> Split:
    """Divide cases as a file says.

    Args:
        cases: the collection; every case must be named in the file, and every name must be a case.
        path: what :func:`save_split` wrote.
    """
    content = read_json(Path(path))
    if content.get("format") != FORMAT or content.get("version") != VERSION:
        raise InputError(
            f"{path} has format {content.get('format')!r} version {content.get('version')!r}, but {FORMAT!r} version "
            f"{VERSION} is needed. Make the split again."
        )
    parts = [_ids(content, name, path) for name in PARTS]
    named = [case_id for part in parts for case_id in part]
    twice = sorted(case_id for case_id, count in Counter(named).items() if count > 1)
    if twice:
        raise InputError(f"{path} names {_listed(twice)} more than once, but parts are disjoint. Make the split again.")
    absent = sorted(set(named) - set(cases.ids))
    new = sorted(set(cases.ids) - set(named))
    if absent or new:
        raise InputError(
            f"{path} names {len(absent)} cases that are not there ({_listed(absent)}) and leaves out {len(new)} that "
            f"are ({_listed(new)}), but it must name all. Make the split again, or open the cases it was made for."
        )
    return Split(*(cases.subset(part) for part in parts))


def _ids(content: dict[str, Any], name: str, path: str | Path) -> list[str]:
    ids = content.get(name)
    if not isinstance(ids, list) or not all(isinstance(case_id, str) for case_id in ids):
        raise InputError(f"{path} has no list of ids under {name!r}, but it is needed. Make the split again.")
    return ids


def _listed(ids: Sequence[str]) -> str:
    return (", ".join(ids[:5]) + (", ..." if len(ids) > 5 else "")) or "none"
