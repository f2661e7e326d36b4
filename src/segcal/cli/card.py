"""``segcal card``: one document that says what was calibrated, on what, and what is promised."""

import argparse
import csv
import io
from pathlib import Path

import segcal
from segcal.cli.codes import DONE
from segcal.cli.console import Output
from segcal.cli.reading import json_option, load_calibrator
from segcal.cli.wording import plural
from segcal.documents import read_text, reading
from segcal.errors import InputError

ABOUT = {
    "usage": "segcal card CAL [RESULTS] -o card.md|card.json|card.html [options]",
    "description": "Write one document that says what was calibrated, on which cases (hashes, not names), what is\n"
    "promised and how that is known, numbers of held-out cases with intervals, and what it is not valid for.\n"
    "RESULTS is what segcal evaluate --csv wrote. Markdown begins with the metadata of a Hugging Face model card.",
    "epilog": "example:\n  segcal card calibrator/ cases.csv -o card.md",
}


def declare(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("calibrator", type=Path, metavar="CAL", help="a folder written by segcal fit")
    parser.add_argument("results", nargs="?", type=Path, metavar="RESULTS", help="a file of segcal evaluate --csv")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="ends in .md, .json or .html")
    parser.add_argument(
        "--dataset", default="held-out cases", metavar="NAME", help="what the evaluated cases are called"
    )
    parser.add_argument("--subgroups", type=Path, metavar="FILE", help="a CSV with the columns case and subgroup")
    parser.add_argument(
        "--not-valid-for", action="append", default=[], metavar="TEXT", help="add a limit; may be repeated"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace a file that is no card")
    json_option(parser)


def run(args: argparse.Namespace) -> int:
    """Write the card and say where it is."""
    output = Output(args.json)
    made = segcal.card(
        load_calibrator(args),
        args.results,
        args.output,
        dataset=args.dataset,
        subgroups=None if args.subgroups is None else _subgroups(args.subgroups),
        not_valid_for=args.not_valid_for,
        overwrite=args.overwrite,
    )
    fitted_to, measured_on = made.calibration_data.cases, made.evaluation_data.cases
    output.say(f"{args.output} written: fitted to {plural(fitted_to, 'case')}, measured on {measured_on}")
    output.document({"card": str(args.output), "subgroups": [each.subgroup for each in made.performance[1:]]})
    return DONE


def _subgroups(file: Path) -> dict[str, str]:
    text = read_text(file)
    with reading(file):
        rows = list(csv.DictReader(io.StringIO(text)))
    if not rows or not {"case", "subgroup"} <= set(rows[0]):
        raise InputError(f"{file} has no columns case and subgroup, but both are needed. Write them in its first line.")
    return {row["case"]: row["subgroup"] for row in rows if row["subgroup"]}
