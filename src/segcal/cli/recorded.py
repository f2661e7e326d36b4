"""The options of a command as a part of it keeps them, and the folder that has its results."""

import argparse
import json
import re
from pathlib import Path
from typing import Any

from segcal.cases.records import content_digest
from segcal.cases.remote import url_of
from segcal.errors import InputError
from segcal.target import check_file, make_folder

# What does not decide results, or is another in every part.
FREE = (
    "run", "output", "num_parts", "part_id", "engine", "scheduler", "slurm", "workers", "json", "overwrite", "merged",
    "csv", "summary", "report",
)  # fmt: skip
# Options whose content decides, wherever it lies.
CONTENT = ("calibrator", "protocol")


def settings(args: argparse.Namespace) -> dict[str, str]:
    """Return what decides the results of a command, as JSON texts by name; paths are complete."""
    found = {name: _text(value) for name, value in vars(args).items() if name not in FREE}
    for name in CONTENT:
        if isinstance(getattr(args, name, None), Path):
            found[f"{name} content"] = json.dumps(content_digest(getattr(args, name)))
    return found


def _text(value: Any) -> str:
    return json.dumps(value, default=lambda path: {"path": url_of(path) or str(Path(path).absolute())})


def output_option(parser: argparse.ArgumentParser) -> None:
    """Add the option for a folder of results, for commands that also do without."""
    parser.add_argument("-o", "--output", type=Path, metavar="OUT", help="a folder for the results, or for a part")


def result_path(args: argparse.Namespace, name: str, signature: re.Pattern[bytes] | None = None) -> Path | None:
    """Return where a result goes, in a folder that is made for it; None without one. See :func:`check_file`."""
    if args.output is None or getattr(args, "part_id", None) is not None:
        return None
    make_folder(args.output)
    own = re.compile(rb'\{\n "made_by": "segcal ' + Path(name).stem.encode())
    check_file(args.output / name, signature or own, (), bool(getattr(args, "overwrite", False)))
    return Path(args.output / name)


def check_parts_options(args: argparse.Namespace) -> None:
    """Refuse options that do not go together."""
    if (args.num_parts is None) != (args.part_id is None) and args.engine != "slurm":
        given, other = ("--part-id", "--num-parts") if args.num_parts is None else ("--num-parts", "--part-id")
        raise InputError(f"{given} is given without {other}, but a part needs both. Give both, or neither.")
    if args.engine == "slurm" and (args.num_parts is None or args.part_id is not None or args.output is None):
        raise InputError("--engine is slurm, but it needs --num-parts and -o, and no --part-id. Give the former alone.")
    if args.part_id is not None and args.engine == "dask":
        raise InputError(
            "--part-id is given with --engine dask, but one process does a part. Leave one of the two out; --workers "
            "helps with a part."
        )
    if any("=" not in text for text in args.slurm):
        raise InputError(f"--slurm is {args.slurm[-1]!r}, but KEY=VALUE is needed. Write partition=gpu or time=60.")
    if args.part_id is not None and args.output is None:
        raise InputError("--part-id is given without -o, but a part is a folder. Name one with -o.")
    for name in ("csv", "summary", "report") if args.part_id is not None else ():
        if getattr(args, name, None) is not None:
            raise InputError(
                f"--{name} is given with --part-id, but a part has no such file. Leave it out: RESULT has."
            )
