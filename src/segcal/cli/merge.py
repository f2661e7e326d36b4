"""``segcal merge``: the parts of a command, put together."""

import argparse
from pathlib import Path

from segcal.cli.commands import DIVIDED, make_parser
from segcal.cli.parsing import at_least_one
from segcal.cli.paths import check_paths
from segcal.cli.reading import json_option
from segcal.cli.recorded import settings
from segcal.errors import InputError
from segcal.scale.merge import check_parts

MERGED = (*DIVIDED, "benchmark")

ABOUT = {
    "usage": "segcal merge PART... -o RESULT [options] -- COMMAND ...",
    "description": "Put together what a command with --num-parts and --part-id wrote: RESULT is what the command\n"
    "writes in one process, byte for byte. The command stands after --, as it was given for any of the parts:\n"
    "paths and options come from there, and of a part nothing is taken but its results. Parts that are\n"
    "missing, doubled, unfinished, of other options or of cases that have changed since are refused.",
    "epilog": "example:\n  segcal merge part0/ part1/ -o result/ -- evaluate predictions/ labels/ --kind logits",
}


def declare(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("parts", nargs="+", type=Path, metavar="PART", help="the folders of all parts, in any order")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="RESULT", help="where the result goes")
    parser.add_argument("--workers", type=at_least_one, default=1, metavar="N", help="processes for what remains to do")
    parser.add_argument("--overwrite", action="store_true", help="as for the command that made the parts")
    json_option(parser)
    if parser.get_default("made_by") is None:
        parser.set_defaults(made_by=[])


def run(args: argparse.Namespace) -> int:
    """Check the parts against the command, and end what they began."""
    if any(args.output.resolve().is_relative_to(part.resolve()) for part in args.parts):
        raise InputError(f"{args.output} is one of the parts, but the result needs a folder of its own. Name another.")
    if not args.made_by or args.made_by[0] not in MERGED:
        given = f"{args.made_by[0]!r} is" if args.made_by else "nothing is"
        raise InputError(
            f"{given} after --, but the command that made the parts is needed there, one of {', '.join(MERGED)}. "
            "Write it as it was given: segcal merge PART... -o RESULT -- COMMAND ..."
        )
    again = make_parser().parse_args([*args.made_by, f"--output={args.output}"])
    again.merged, again.num_parts, again.part_id, again.engine = args.parts, None, None, "local"
    again.workers, again.json, again.overwrite = args.workers, args.json, args.overwrite
    check_paths(again)
    check_parts(args.parts, settings(again))
    code: int = again.run(again)
    return code
