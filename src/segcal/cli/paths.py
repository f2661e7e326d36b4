"""What commands read and what they write, for all of them in one place; looked at before any of them begins.

- No target is an input of the same command, however it is spelt: by a link, as another name of the same file, or inside
  a folder that is read. Nothing replaces an input, whatever the options say.
- Nothing is put among the files of a folder of cases, where it could be taken for one of them.
- No two targets of one command are the same file.
- A URL stands only where one is understood: predictions, labels, and folders for results.
- A target that is named and is a link is written where it leads, and the link stays (see :mod:`segcal.atomic` for all
  others).
"""

import argparse
from itertools import combinations
from pathlib import Path
from typing import Any

from segcal.cases.files import IMAGES, LABELS
from segcal.cases.formats import FORMATS
from segcal.cases.remote import url_of
from segcal.errors import InputError
from segcal.fitting.artifact import DESCRIPTION, WEIGHTS
from segcal.target import check_apart

# The options that name a file to be written, and those that name a folder for results where it is not `output`.
FILES = {
    "fit": ("splits",), "evaluate": ("csv", "summary", "report"), "monitor": ("state",),
    "export": ("output",), "card": ("output",), "report": ("output",),
}  # fmt: skip
FOLDERS = {"demo": ("out",), "nnunet": ("o",), "report": ("figures",), "export": (), "card": ()}
# Options with folders of cases, those that may be URLs first; and those with paths that are neither read nor written.
CASES = ("paths", "labels", "validation", "validation_labels", "trust_predictions", "trust_labels")
MORE_CASES = ("images", "properties", "series", "seg", "i")
NEITHER = ("root", "results")  # where paths begin; and a folder whose page lies in it, and which looks by itself
# What `evaluate` calls its results in a folder, and the option that names the same one elsewhere.
OWN = {"evaluate.json": "", "cases.csv": "csv", "summary.json": "summary"}
ENDINGS = (*(end for each in FORMATS.values() for end in each.extensions), *LABELS, *IMAGES)


def check_paths(args: argparse.Namespace) -> None:
    """Refuse paths that do not go together; a target that is a link becomes what it leads to."""
    targets = _targets(args)
    given = {name: _paths(name, value) for name, value in vars(args).items() if name not in {*targets, *NEITHER}}
    if args.command == "report" and args.paths:
        given["calibrator"] = [args.results]
    _check_urls(args, given, targets)
    targets = {name: is_folder for name, is_folder in targets.items() if url_of(getattr(args, name)) is None}
    here = {name: [path for each in paths if (path := _local(each)) is not None] for name, paths in given.items()}
    read = [path for name, paths in here.items() for path in _content(name, paths)]
    among = [path for name in (*CASES, *MORE_CASES) for path in here.get(name, ())]
    for name, is_folder in targets.items():
        target = getattr(args, name)
        if target.is_symlink():
            setattr(args, name, target.resolve())
        check_output(target, is_folder, [*read, *given.get("calibrator", ())] if is_folder else read, among)
    for one, other in combinations(targets, 2):
        file, last = (other, one) if targets[one] else (one, other)
        _check_two(args, file, last, targets)


def _targets(args: argparse.Namespace) -> dict[str, bool]:
    """Return the options that name a target, and whether it is a folder."""
    folders = FOLDERS.get(args.command, ("output",))
    if args.command == "nnunet" and args.action == "fit":
        folders = ("calibrator",)
    if args.command == "margins" and args.action == "fit":
        return {"output": False}
    found = dict.fromkeys(FILES.get(args.command, ()), False) | dict.fromkeys(folders, True)
    if getattr(args, "splits", None) is not None and args.splits.exists():  # is read
        del found["splits"]
    return {name: is_folder for name, is_folder in found.items() if getattr(args, name, None) is not None}


def _paths(name: str, value: Any) -> list[Path]:
    if name == "groups" and str(value).lower().endswith(".csv"):
        return [Path(value)]
    return [each for each in (value if isinstance(value, list | tuple) else [value]) if isinstance(each, Path)]


def _local(path: Path) -> Path | None:
    """Return where a path is on this machine, also as a URL; None for one that is elsewhere."""
    url = url_of(path)
    return path if url is None else Path(url.removeprefix("file://")) if url.startswith("file://") else None


def _content(name: str, paths: list[Path]) -> list[Path]:
    """Return what is read: of a calibrator its own files, because a card may lie beside them."""
    return [path / own for path in paths for own in (DESCRIPTION, WEIGHTS)] if name == "calibrator" else paths


def _check_urls(args: argparse.Namespace, given: dict[str, list[Path]], targets: dict[str, bool]) -> None:
    only_paths = [path for name, paths in given.items() if name not in CASES for path in paths]
    url = next((url for path in only_paths if (url := url_of(path))), None)
    if url is not None:
        raise InputError(
            f"{url} is a URL, but only predictions, labels and folders for results may be one. Copy it to this "
            "machine, and name the copy."
        )
    for name, is_folder in targets.items():
        url = url_of(getattr(args, name))
        if url and (not is_folder or name != "output" or getattr(args, "engine", None) == "slurm"):
            raise InputError(
                f"{url} is a URL, but a path of this machine is needed there. Name one, and copy the result."
            )


def check_output(target: Path, is_folder: bool, read: list[Path], among: list[Path]) -> None:
    """Refuse a target that is read, or that would lie among the files of folders of cases."""
    check_apart(target, read)
    for folder in among:
        _check_among(target, is_folder, folder)


def _check_among(target: Path, is_folder: bool, folder: Path) -> None:
    place, read = target.resolve(), folder.resolve()
    inside = place.relative_to(read).parts if place.is_relative_to(read) else None
    if inside and (inside[0].lower().endswith(ENDINGS) or (len(inside) == 1 and not is_folder)):
        raise InputError(
            f"{target} is among the files of {folder}, which are read, but results would be mixed with them. Name "
            "another place."
        )


def _check_two(args: argparse.Namespace, file: str, other: str, targets: dict[str, bool]) -> None:
    """Refuse two targets that are one file, and a file that the command puts into the other one, a folder."""
    one, two = (getattr(args, name) for name in (file, other))
    place, second = one.resolve(), two.resolve()
    shared = place == second or (one.exists() and two.exists() and one.samefile(two))
    if targets[other] and not targets[file] and place.parent == second:
        own = args.command == "evaluate" and OWN.get(place.name, file) == file
        shared = not own and (args.command != "report" or place.suffix == ".svg")
    if shared:
        raise InputError(
            f"{one} is named for two results ({file} and {other}), but each needs a file of its own. Name another."
        )
