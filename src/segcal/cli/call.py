"""One call of a command: what it reads and writes, who works on its cases (see docs/scale.md), and how it ends.

Paths are looked at before any command begins:

- No target is an input of the same command: not by a link, as another name of the same file, or inside a folder that is
  read. Nothing replaces an input, whatever the options say.
- Nothing is put among the files of a folder of cases, where it could be taken for one of them.
- No two targets of one command are the same file.
- A URL stands only where one is understood: predictions, labels, and folders for results.
- A target that is named and is a link is written where it leads, and the link stays (see :mod:`segcal.atomic` for all
  others).
"""

import argparse
import importlib
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import fields
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from segcal.cases import Cases, FileCases, ReadOptions, open_cases, split_folders
from segcal.cases.files import IMAGES, LABELS
from segcal.cases.formats import FORMATS
from segcal.cases.parallel import Workers
from segcal.cases.records import content_digest
from segcal.cases.remote import url_of
from segcal.cli.arguments import RESULTS
from segcal.cli.commands import DONE, Role, command_of
from segcal.cli.console import Output, case_bar, plural
from segcal.errors import InputError, SegcalError
from segcal.fitting.artifact import DESCRIPTION, WEIGHTS, load
from segcal.fitting.certificate import Fitted
from segcal.memory import Footprint
from segcal.scale.dask_engine import DaskEngine
from segcal.scale.merge import Merged
from segcal.scale.part import Identified, Part, kept_beside
from segcal.target import check_apart, check_file, make_folder
from segcal.trust.result import Printed

# The folder of labels, or one per rater.
Labels: TypeAlias = Path | list[Path] | None
Found = TypeVar("Found")
TARGETS = (Role.FILE, Role.FOLDER)
ENDINGS = (*(end for each in FORMATS.values() for end in each.extensions), *LABELS, *IMAGES)


class Call:
    """One call of a command.

    Attributes:
        say: prints for a person.
        failed: takes the error of a case, and the others go on; None where the first one ends the command.
        workers: who works on cases.
        part: the shard, if the command is to end with one.
        progress: counts a case that is done.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.output = args, Output(args.json)
        self.say = self.output.say
        self.failed = None if getattr(args, "strict", False) else self.output.failed
        self.workers: Workers = getattr(args, "workers", None) or 1
        self.part: Part | None = None
        self.progress: Callable[..., None] = lambda *_: None
        self._path: Path | None = None

    @cached_property
    def fitted(self) -> Fitted:
        """The calibrator; a class is imported if the command line names it, never because a file does."""
        given = self.args.calibrator_class
        if given is None:
            return load(self.args.calibrator)
        module, _, name = given.partition(":")
        sys.path[:0] = [str(Path.cwd())] if str(Path.cwd()) not in sys.path else []
        try:
            kind = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError, ValueError) as error:
            raise InputError(
                f"--calibrator-class is {given}, but it cannot be imported ({error}). Name it as MODULE:CLASS, and run "
                "the command where the module is."
            ) from None
        return load(self.args.calibrator, [kind])

    @cached_property
    def cases(self) -> FileCases:
        """The cases in the folders that are named."""
        pooling = self.fitted.pooling if hasattr(self.args, "calibrator_class") else None
        return self.open(self.args.paths, getattr(self.args, "labels", None), pooling)

    @property
    def labelled(self) -> tuple[list[Path], Labels]:
        """The folders of predictions and of labels: the last one, or those of --labels."""
        args = self.args
        return (args.paths, args.labels) if args.labels else split_folders(args.paths)

    @property
    def own(self) -> FileCases:
        """The cases to work on: all, or those of the shard."""
        return self.cases if self.part is None else self.part.take(self.cases)

    def open(self, folders: list[Path], labels: Labels, pooling: str | None = None, matching: bool = True) -> FileCases:
        """Open cases as the options say; unless strict, incomplete ones fail one by one when they are read.

        Args:
            folders: one per member.
            labels: the folder of labels, or one per rater.
            pooling: how several folders are pooled where the options do not say.
            matching: refuse folders of which no case has labels.
        """
        names = [field.name for field in fields(ReadOptions)]
        declared = {name: getattr(self.args, name) for name in names}
        given = {name: value for name, value in declared.items() if value is not None}
        if pooling is not None and len(folders) > 1:
            given = {"pooling": pooling} | given
        cases = open_cases(folders, labels, strict=self.args.strict, **given)
        known = cases.label_folder
        if matching and labels is not None and known is not None and not set(cases.ids) & set(known.files):
            raise InputError(
                f"{folders[0]} and {known.folder} have no case in common (such as {cases.ids[0]} and "
                f"{min(known.files)}), but files of one case must have one stem. Rename them, or name other folders."
            )
        cases.footprint = Footprint.of(self.args.command, self.args.workers)
        return cases

    @contextmanager
    def engine(self, *collections: Identified) -> Iterator[None]:
        """Have these cases, or a part of them, worked on as the options say."""
        args = self.args
        if RESULTS in command_of(args.command).arguments:
            self._path = result_path(args, f"{args.command}.json")
        with ExitStack() as held:
            if args.merged is not None:
                held.enter_context(_of_parts(args.merged))
                self.workers = Merged(args.merged, collections, args.output, args.workers)
            elif args.part_id is not None:
                alone = args.command != "benchmark"  # whose folder has been looked at
                part = Part(args.output, collections, args.part_id, args.num_parts, settings(args), args.workers, alone)
                self.workers = self.part = held.enter_context(part)
            elif args.engine == "dask":
                self.workers = dask = held.enter_context(DaskEngine(args.scheduler, args.workers))
                if args.output is not None:
                    kept = kept_beside(args.output, collections, settings(args), dask)
                    self.workers = held.enter_context(kept)
            yield

    @contextmanager
    def bar(self, title: str, total: int | None = None) -> Iterator[None]:
        """Show how many cases are done, of so many or of all."""
        with case_bar(title, len(self.own) if total is None else total, self.args.quiet) as self.progress:
            yield

    def do(self, function: Callable[..., Found], *given: Any, **more: Any) -> Found:
        """Call a function of the library: every option goes to the argument of its name. Cases know their labels."""
        known = vars(self.args) | {"workers": self.workers, "failed": self.failed, "progress": self.progress} | more
        names = list(inspect.signature(function).parameters)[len(given) :]
        if any(isinstance(each, Cases) for each in given):
            known.pop("labels", None)
        return function(*given, **{name: known[name] for name in names if name in known})

    def end(self, document: Mapping[str, object], code: int = DONE) -> int:
        """Print and write the document, list the cases that failed, and return the exit code."""
        self.output.document(document, self._path)
        finished = self.output.finish()
        return code or finished

    def end_with(self, found: Printed, *more: str) -> int:
        """Print rows that were written, or say that a shard is done, and return the exit code."""
        if self.part is not None:
            return self.end_of_part()
        self.say(*found.parts(), *more, f"written to {self.args.output}")
        return self.end(found.to_plain() | {"output": str(self.args.output)})

    def end_of_part(self, counted: bool = True) -> int:
        """Say that a shard is done, with its number of cases, and return the exit code."""
        number, of, folder = self.args.part_id, self.args.num_parts, self.args.output
        cases = len(self.part.ids) if self.part is not None and counted else None
        count = "" if cases is None else f", {plural(cases, 'case')}"
        self.say(f"shard {number} of {of}{count}, written to {folder}: next comes segcal merge")
        return self.end({"part": number, "of": of, "cases": cases, "output": str(folder)})


def result_path(args: argparse.Namespace, name: str, signature: re.Pattern[bytes] | None = None) -> Path | None:
    """Return where a result goes, in a folder that is made for it; None without one. See :func:`check_file`."""
    if args.output is None or args.part_id is not None:
        return None
    make_folder(args.output)
    own = re.compile(rb'\{\n "made_by": "segcal ' + Path(name).stem.encode())
    check_file(args.output / name, signature or own, (), bool(getattr(args, "overwrite", False)))
    return Path(args.output / name)


@contextmanager
def _of_parts(parts: list[Path]) -> Iterator[None]:
    """Report results of shards that do not fit together as one error: nothing guarantees their form."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, RuntimeError, AssertionError, ValueError) as error:
        if isinstance(error, SegcalError):
            raise
        reason = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:160]}"
        raise InputError(
            f"{parts[0]} and the other shards hold results that cannot be put together ({reason}), but they must be as "
            "segcal wrote them. Run the shards again."
        ) from error


def settings(args: argparse.Namespace) -> dict[str, str]:
    """Return what decides the results of a command, as JSON texts by name: paths are complete, and content is read."""
    found = {"command": _text(args.command)}
    for one in command_of(args.command).all_arguments:
        value = getattr(args, one.dest)
        if one.decides and one.role not in (Role.FILE, Role.FOLDER):
            found[one.dest] = _text(value)
        if one.role in (Role.CALIBRATOR, Role.READ) and value is not None:
            found[f"{one.dest} content"] = _text(content_digest(value))
    return found


def _text(value: Any) -> str:
    return json.dumps(value, default=lambda path: {"path": url_of(path) or str(Path(path).absolute())})


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
                "another target."
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
