"""The options by which every command reads predictions and labels."""

import argparse
import importlib
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

from segcal.cases import FileCases, ReadOptions, open_cases
from segcal.cli.parsing import at_least_one, device, numbers, regions
from segcal.cli.wording import RENAMED, option
from segcal.errors import InputError
from segcal.fitting.artifact import load
from segcal.fitting.certificate import Fitted
from segcal.memory import Footprint

POOLING = "how several member folders are pooled; default: as the calibrator says, and for fit the better one"
# How a text becomes what is declared.
KINDS: dict[type, Any] = {str: str, int: int, list: lambda text: text.split(","), tuple: numbers, dict: regions}


def common_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that every command has."""
    group = parser.add_argument_group("output and resources")
    json_option(group)
    group.add_argument("--workers", type=at_least_one, default=1, metavar="N", help="processes to use (default 1)")
    group.add_argument("--device", type=device, default="cpu", help="where to calibrate: cpu (default) or cuda")
    group.add_argument("--strict", action="store_true", help="stop at the first case that fails, with exit code 2")


def class_option(parser: argparse.ArgumentParser) -> None:
    """Add the option for a calibrator of a class of the user's own."""
    about = "class of a calibrator of your own; imported from here or from what is installed"
    parser.add_argument("--calibrator-class", metavar="MODULE:CLASS", help=about)


def load_calibrator(args: argparse.Namespace) -> Fitted:
    """Read the calibrator; a class is imported if the command line names it, never because a file does."""
    if args.calibrator_class is None:
        return load(args.calibrator)
    module, _, name = args.calibrator_class.partition(":")
    sys.path[:0] = [str(Path.cwd())] if str(Path.cwd()) not in sys.path else []
    try:
        kind = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(
            f"--calibrator-class is {args.calibrator_class}, but it cannot be imported ({error}). Name it as "
            "MODULE:CLASS, and run the command where the module is."
        ) from None
    return load(args.calibrator, [kind])


def json_option(parser: Any) -> None:
    """Add the options for one document, and for silence."""
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout and nothing else there")
    parser.add_argument("--quiet", action="store_true", help="say nothing of how far it is")


def reading_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say what the files are: the fields of :class:`segcal.cases.ReadOptions`."""
    group = parser.add_argument_group("what the files are (declared, never guessed from values)")
    for field in fields(ReadOptions):
        about = field.metadata
        given: dict[str, Any] = {"help": POOLING if field.name == "pooling" else about["help"]}
        if about["plain"] is bool:
            given |= {"action": "store_const", "const": True}
        else:
            given["type"] = Path if about.get("path") else KINDS[about["plain"]]
        given |= {name: about[name] for name in ("choices", "metavar") if name in about}
        group.add_argument(option(field.name), **given)


def read_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return what was declared, as :func:`segcal.open_cases` takes it."""
    given = {field.name: getattr(args, RENAMED.get(field.name, field.name)) for field in fields(ReadOptions)}
    return {name: value for name, value in given.items() if value is not None}


def open_folders(
    args: argparse.Namespace, folders: list[Path], labels: Path | None = None, pooling: str | None = None
) -> FileCases:
    """Open cases as the options say; unless strict, incomplete ones fail one by one when they are read.

    Args:
        args: the options.
        folders: one folder per member.
        labels: the folder of labels.
        pooling: how several folders are pooled where the options do not say.
    """
    default = {} if pooling is None or len(folders) < 2 else {"pooling": pooling}
    cases = open_cases(folders, labels, strict=args.strict, **(default | read_options(args)))
    if labels is not None and cases.label_folder is not None and not set(cases.ids) & set(cases.label_folder.files):
        spare = sorted(cases.label_folder.files)
        raise InputError(
            f"{folders[0]} and {labels} have no case in common (such as {cases.ids[0]} and {spare[0]}), but files of "
            "one case must have one stem. Rename the files, or name other folders."
        )
    cases.footprint = Footprint.of(args.command, args.workers)
    return cases
