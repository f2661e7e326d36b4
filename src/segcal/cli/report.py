"""``segcal report``: one offline page of a folder of results."""

import argparse
from pathlib import Path
from typing import Any

from segcal.cli.console import DONE, Output
from segcal.studies.page import write_report

EXAMPLE = "example:\n  segcal report demo-results -o report.html"


def add(commands: Any, name: str) -> argparse.ArgumentParser:
    """Declare the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help="one offline page: verdict, tables, diagrams, cases",
        description="Write one HTML file that shows a folder of results and needs no network. See docs/report.md.",
        epilog=EXAMPLE,
    )
    parser.add_argument("results", type=Path, metavar="RESULTS", help="a folder of segcal benchmark or segcal demo")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="the page; default: report.html in the folder"
    )
    parser.add_argument("--figures", type=Path, metavar="FOLDER", help="write the figures there too, as SVG files")
    parser.add_argument("--overwrite", action="store_true", help="replace such files though segcal did not write them")
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout and nothing else there")
    return parser


def run(args: argparse.Namespace) -> int:
    """Write the page and say where it is."""
    output = Output(args.json)
    path = write_report(args.results, args.output, args.figures, args.overwrite)
    output.say(f"report {path} ({path.stat().st_size / 1e6:.1f} MB): open it in a browser")
    output.document({"report": str(path), "figures": None if args.figures is None else str(args.figures)})
    return DONE
