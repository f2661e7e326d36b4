"""``segcal report``: one offline page, of a folder of results or of a calibrator on predictions."""

import argparse
from pathlib import Path

from segcal.cli import evaluate
from segcal.cli.codes import DONE
from segcal.cli.console import Output
from segcal.errors import InputError
from segcal.studies.page import write_report

EXAMPLES = (
    "examples:\n  segcal report demo-results -o report.html\n"
    "  segcal report calibrator/ predictions/ labels/ --kind logits -o report.html"
)
# What `segcal evaluate` takes beside the options of this command.
OTHERWISE: dict[str, object] = {
    **dict.fromkeys(("metrics", "csv", "summary", "output", "merged", "part_id", "num_parts")),
    **{"seed": 0, "ignore_pooling": False, "convention": "paper", "engine": "local"},
}


ABOUT = {
    "usage": "segcal report RESULTS | CAL PREDICTIONS... LABELS [options]",
    "description": "Write one HTML file that shows a folder of results and needs no network; or, of a calibrator and\n"
    "predictions, what segcal evaluate --report writes. See docs/report.md.",
    "epilog": EXAMPLES,
}


def declare(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("results", type=Path, metavar="RESULTS", help="a folder of segcal benchmark or segcal demo")
    parser.add_argument(
        "paths", nargs="*", type=Path, metavar="PREDICTIONS LABELS", help="with a calibrator in place of RESULTS"
    )
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="the page; default: report.html, in RESULTS if it is one"
    )
    parser.add_argument("--figures", type=Path, metavar="FOLDER", help="write the figures there too, as SVG files")
    parser.add_argument("--overwrite", action="store_true", help="replace such files though segcal did not write them")


def run(args: argparse.Namespace) -> int:
    """Write the page and say where it is."""
    if args.paths:
        if args.figures is not None:
            raise InputError("--figures are those of a folder of results, but a calibrator was named. Leave it out.")
        page = args.output or Path("report.html")
        return evaluate.run(argparse.Namespace(**vars(args) | OTHERWISE | {"calibrator": args.results, "report": page}))
    output = Output(args.json)
    path = write_report(args.results, args.output, args.figures, args.overwrite)
    output.say(f"report {path} ({path.stat().st_size / 1e6:.1f} MB): open it in a browser")
    output.document({"report": str(path), "figures": None if args.figures is None else str(args.figures)})
    return DONE
