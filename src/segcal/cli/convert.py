"""``segcal convert``: any format to our own store."""

import argparse
from pathlib import Path

import segcal
from segcal.cli.console import Output
from segcal.cli.progress import case_bar
from segcal.cli.reading import open_folders

ABOUT = {
    "usage": "segcal convert PREDICTIONS... -o STORE [--labels FOLDER] [options]",
    "description": "Write pooled cases, with their labels, into segcal's own format, which needs no further options.\n"
    "Run again, the command goes on with what is missing or changed.",
    "epilog": "example:\n  segcal convert member_*/ --labels labels/ -o store/ --kind logits --pool mean_logits",
}


def declare(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("paths", nargs="+", type=Path, metavar="PREDICTIONS", help="one folder, or one per member")
    parser.add_argument("--labels", type=Path, metavar="FOLDER", help="label maps to keep with the scores")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="STORE", help="where to write")
    parser.add_argument("--overwrite", action="store_true", help="clear what other settings or other cases made")


def run(args: argparse.Namespace) -> int:
    """Convert case by case."""
    output = Output(args.json)
    cases = open_folders(args, args.paths, args.labels)
    failed = None if args.strict else output.failed
    with case_bar("converting", len(cases), args.quiet) as step:
        done = segcal.convert(cases, args.output, args.overwrite, args.workers, lambda case_id: step(), failed)
    output.written(len(done.written), args.output, done.already, done.stale)
    output.document({"written": done.written, "already_there": done.already, "stale": done.stale})
    return output.finish()
