"""``segcal merge``: the parts of a command, put together."""

import argparse
import json
from importlib import import_module
from pathlib import Path

from segcal.cli.commands import DIVIDED
from segcal.cli.parsing import at_least_one
from segcal.cli.reading import json_option
from segcal.cli.recorded import restored
from segcal.errors import InputError
from segcal.scale.merge import check_parts

ABOUT = {
    "usage": "segcal merge PART... -o RESULT [options]",
    "description": "Put together what a command with --num-parts and --part-id wrote: RESULT is what the command\n"
    "writes in one process, byte for byte. Parts that are missing, doubled, unfinished, of other options\n"
    "or of cases that have changed since are refused. The cases must be where they were.",
    "epilog": "example:\n  segcal merge part0/ part1/ -o result/",
}


def declare(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("parts", nargs="+", type=Path, metavar="PART", help="the folders of all parts, in any order")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="RESULT", help="where the result goes")
    parser.add_argument("--workers", type=at_least_one, default=1, metavar="N", help="processes for what remains to do")
    parser.add_argument("--overwrite", action="store_true", help="as for the command that made the parts")
    json_option(parser)


def run(args: argparse.Namespace) -> int:
    """Check the parts, and end what they began."""
    if args.output.absolute() in {part.absolute() for part in args.parts}:
        raise InputError(f"{args.output} is one of the parts, but the result needs a folder of its own. Name another.")
    facts = next(iter(check_parts(args.parts).values()))
    if facts.settings.get("command") not in {json.dumps(name) for name in (*DIVIDED, "benchmark")}:
        raise InputError(f"{args.parts[0]} is no part of a command that can be merged. Name the folders of its parts.")
    free = {name: getattr(args, name) for name in ("output", "workers", "overwrite", "json")}
    again = restored(facts.settings, merged=args.parts, **free)
    code: int = import_module(f"segcal.cli.{again.command}").run(again)
    return code
