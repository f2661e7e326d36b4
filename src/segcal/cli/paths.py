"""What commands read and what they write, as their arguments say; looked at before any of them begins.

- No target is an input of the same command, however it is spelt: by a link, as another name of the same file, or inside
  a folder that is read. Nothing replaces an input, whatever the options say.
- Nothing is put among the files of a folder of cases, where it could be taken for one of them.
- No two targets of one command are the same file.
- A URL stands only where one is understood: predictions, labels, and folders for results.
- A target that is named and is a link is written where it leads, and the link stays (see :mod:`segcal.atomic` for all
  others).
"""

import argparse
from collections.abc import Sequence
from fnmatch import fnmatchcase
from itertools import combinations
from pathlib import Path
from typing import Any

from segcal.cases.files import IMAGES, LABELS
from segcal.cases.formats import FORMATS
from segcal.cases.remote import url_of
from segcal.cli.commands import Role, command_of
from segcal.errors import InputError
from segcal.fitting.artifact import DESCRIPTION, WEIGHTS
from segcal.target import check_apart

TARGETS = (Role.FILE, Role.FOLDER)
ENDINGS = (*(end for each in FORMATS.values() for end in each.extensions), *LABELS, *IMAGES)


def check_paths(args: argparse.Namespace) -> None:
    """Refuse paths that do not go together; a target that is a link becomes what it leads to."""
    given: dict[str, tuple[Role, list[Path]]] = {}
    for one in command_of(args.command).all_arguments:
        role = one.role(args) if callable(one.role) else one.role
        if role is not None:
            given[one.dest] = role, _paths(getattr(args, one.dest, None))
    read = [(role, path) for role, paths in given.values() if role not in TARGETS for path in paths]
    targets = {name: role for name, (role, paths) in given.items() if role in TARGETS and paths}
    _check_urls(args, read, targets)
    targets = {name: role for name, role in targets.items() if url_of(getattr(args, name)) is None}
    here = [(role, local) for role, path in read if (local := _local(path)) is not None]
    content = [each for role, path in here for each in _content(role, path)]
    calibrators = [path for role, path in here if role is Role.CALIBRATOR]
    among = [path for role, path in here if role in (Role.CASES, Role.BESIDE)]
    for name, role in targets.items():
        target = getattr(args, name)
        if target.is_symlink():
            setattr(args, name, target.resolve())
        is_folder = role is Role.FOLDER
        check_output(target, is_folder, [*content, *calibrators] if is_folder else content, among)
    for first, second in combinations(targets, 2):
        file, other = (second, first) if targets[first] is Role.FOLDER else (first, second)
        _check_two(args, file, other, targets)


def _paths(value: Any) -> list[Path]:
    if isinstance(value, str) and value.lower().endswith(".csv"):  # and no pattern
        return [Path(value)]
    return [each for each in (value if isinstance(value, list | tuple) else [value]) if isinstance(each, Path)]


def _local(path: Path) -> Path | None:
    """Return where a path is on this machine, also as a URL; None for one that is elsewhere."""
    url = url_of(path)
    return path if url is None else Path(url.removeprefix("file://")) if url.startswith("file://") else None


def _content(role: Role, path: Path) -> list[Path]:
    """Return what is read: of a calibrator its own files, because a card may lie beside them."""
    return [path / own for own in (DESCRIPTION, WEIGHTS)] if role is Role.CALIBRATOR else [path]


def _check_urls(args: argparse.Namespace, read: Sequence[tuple[Role, Path]], targets: dict[str, Role]) -> None:
    url = next((url for role, path in read if role is not Role.CASES and (url := url_of(path))), None)
    if url is not None:
        raise InputError(
            f"{url} is a URL, but only predictions, labels and folders for results may be one. Copy it to this "
            "machine, and name the copy."
        )
    for name, role in targets.items():
        url = url_of(getattr(args, name))
        if url and (role is Role.FILE or name != "output" or getattr(args, "engine", None) == "slurm"):
            raise InputError(
                f"{url} is a URL, but a path of this machine is needed there. Name one, and copy the result."
            )


def check_output(target: Path, is_folder: bool, read: list[Path], among: list[Path]) -> None:
    """Refuse a target that is read, or that would lie among the files of folders of cases."""
    check_apart(target, read)
    place = target.resolve()
    for folder in among:
        inside = place.relative_to(folder.resolve()).parts if place.is_relative_to(folder.resolve()) else None
        if inside and (inside[0].lower().endswith(ENDINGS) or (len(inside) == 1 and not is_folder)):
            raise InputError(
                f"{target} is among the files of {folder}, which are read, but results would be mixed with them. Name "
                "another place."
            )


def _check_two(args: argparse.Namespace, file: str, other: str, targets: dict[str, Role]) -> None:
    """Refuse two targets that are one file, and a file that the command puts into the other one, a folder."""
    one, two = (getattr(args, name) for name in (file, other))
    place, second = one.resolve(), two.resolve()
    shared = place == second or (one.exists() and two.exists() and one.samefile(two))
    if targets[other] is Role.FOLDER and targets[file] is Role.FILE and place.parent == second:
        own = command_of(args.command).files
        shared = any(fnmatchcase(place.name, pattern) and option != file for pattern, option in own.items())
    if shared:
        raise InputError(
            f"{one} is named for two results ({file} and {other}), but each needs a file of its own. Name another."
        )
