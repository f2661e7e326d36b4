"""``segcal convert``: any format to our own store."""

import argparse
from pathlib import Path

from segcal.cases import StoreWriter
from segcal.cases.parallel import map_cases
from segcal.cli.console import Output
from segcal.cli.progress import case_bar
from segcal.cli.reading import open_folders
from segcal.target import claim

ABOUT = {
    "help": "any format to segcal's own store: pooled, half the size, decisions exact",
    "usage": "segcal convert PREDICTIONS... -o STORE [--labels FOLDER] [options]",
    "description": "Write pooled cases, with their labels, into segcal's own format, which needs no further options.\n"
    "Run again, the command goes on with what is missing or changed.",
    "epilog": "example:\n  segcal convert member_*/ --labels labels/ -o store/ --kind logits --pool mean_logits",
}


def declare(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("paths", nargs="+", type=Path, metavar="PREDICTIONS", help="one folder, or one a member")
    parser.add_argument("--labels", type=Path, metavar="FOLDER", help="label maps to keep with the scores")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="STORE", help="where to write")
    parser.add_argument("--overwrite", action="store_true", help="clear what other settings or other cases made")


def run(args: argparse.Namespace) -> int:
    """Convert case by case."""
    output = Output(args.json)
    cases = open_folders(args, args.paths, args.labels)
    written = []
    with claim(args.output):
        writer = StoreWriter(cases, args.output, args.overwrite)
        missing = cases.subset(case_id for case_id in cases.ids if not writer.done(case_id))
        stale = writer.records.others(cases.ids)
        with case_bar("converting", len(missing)) as step:
            failed = None if args.strict else output.failed
            for case_id, _ in map_cases(missing, writer.write, args.workers, failed):
                written.append(case_id)
                step()
    already = len(cases) - len(missing)
    output.written(len(written), args.output, already, stale)
    output.document({"written": written, "already_there": already, "stale": stale})
    return output.finish()
