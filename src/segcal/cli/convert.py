"""``segcal convert``: any format to our own store."""

import argparse
from pathlib import Path
from typing import Any

from segcal.cases import CaseError, StoreWriter, open_cases
from segcal.cases.parallel import map_cases
from segcal.cli.console import Bar, Output
from segcal.cli.reading import common_options, reading_arguments, reading_options

EXAMPLE = "example: segcal convert member_*/ --labels labels/ -o store/ --kind logits --pool mean_logits"


def add(commands: Any, name: str) -> argparse.ArgumentParser:
    """Declare the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        parents=[reading_options(), common_options()],
        help="any format to segcal's own store: pooled, half the size, decisions exact",
        description="Write pooled cases into segcal's own format; a case that is there already is skipped.",
        epilog=EXAMPLE,
    )
    parser.add_argument("paths", nargs="+", type=Path, metavar="PREDICTIONS", help="one folder, or one a member")
    parser.add_argument("--labels", type=Path, metavar="FOLDER", help="label maps to keep with the scores")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="STORE", help="where to write")
    return parser


def run(args: argparse.Namespace) -> int:
    """Convert case by case."""
    output = Output(args.json)
    cases = open_cases(args.paths, args.labels, strict=args.strict, **reading_arguments(args))
    writer = StoreWriter(cases, args.output)
    missing = cases.subset(case_id for case_id in cases.ids if not writer.done(case_id))
    failures: list[CaseError] = []
    written = []
    with Bar("converting", len(missing)) as bar:
        for case_id, _ in map_cases(missing, writer.write, args.workers, None if args.strict else failures.append):
            written.append(case_id)
            bar.step()
    already = len(cases) - len(missing)
    output.say(
        f"{len(written)} cases written to {args.output}" + (f", {already} were there already" if already else "")
    )
    output.document({"written": written, "already_there": already, "failed": [f.case_id for f in failures]})
    return output.finish(failures)
