"""``segcal adapt``: a calibrator for another place, from predictions alone."""

import argparse
from dataclasses import asdict
from pathlib import Path

import segcal
from segcal.cli.codes import ALARM
from segcal.cli.console import Output
from segcal.cli.progress import case_bar
from segcal.cli.reading import load_calibrator, open_folders
from segcal.cli.wording import table
from segcal.fitting.artifact import check_vacant
from segcal.target import claim_beside
from segcal.trust.adapt import RARE

ABOUT = {
    "usage": "segcal adapt CAL PREDICTIONS... -o NEW [options]",
    "description": "Estimate from predictions alone how frequent each class is at another place, and write a\n"
    "calibrator for it: probabilities are weighed, masks stay. Nothing is written if frequencies have\n"
    "not changed, or if more than frequencies has (exit code 4): that needs labels of the new place.",
    "epilog": "example:\n  segcal adapt calibrator/ elsewhere/ --kind logits -o calibrator_elsewhere/",
}
OPTIONS = ("method", "device", "workers", "ignore_pooling")


def declare(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    option = parser.add_argument
    option("calibrator", type=Path, metavar="CAL", help="a folder written by segcal fit")
    option("paths", nargs="+", type=Path, metavar="PREDICTIONS", help="one folder, or one per member")
    option("-o", "--output", type=Path, required=True, metavar="NEW", help="where the new calibrator goes")
    how = "em: maximum likelihood (default); bbse: least squares"
    option("--method", choices=["em", "bbse"], default="em", help=how)
    option("--overwrite", action="store_true", help="replace a calibrator that is there, also one that is damaged")
    option("--ignore-pooling", action="store_true", help="go on although it was fitted for other pooling")


def run(args: argparse.Namespace) -> int:
    """Estimate, print, and write if there is something to write."""
    output = Output(args.json)
    check_vacant(args.output, args.overwrite)
    fitted = load_calibrator(args)
    cases = open_folders(args, args.paths, pooling=fitted.pooling)
    given = {name: getattr(args, name) for name in OPTIONS}
    with claim_beside(args.output):
        with case_bar("reading", len(cases), args.quiet) as step:
            found = segcal.adapt(fitted, cases, progress=step, failed=None if args.strict else output.failed, **given)
        if found.adapted:
            segcal.save(found.fitted, args.output, args.overwrite)
    columns = zip(found.classes, found.before, found.after, found.ratio, strict=True)
    rows = [[name, f"{before:.2%}", f"{after:.2%}", f"{ratio:.2f}"] for name, before, after, ratio in columns]
    output.say(table(("class", "labelled cases", "here, estimated", "weight"), rows), found.verdict)
    if found.adapted:
        output.say(f"written to {args.output}; it has no reference cases, which segcal trust and monitor need")
    plain = {key: value for key, value in asdict(found).items() if key != "fitted"}
    output.document(plain | {"output": str(args.output) if found.adapted else None})
    code = output.finish()
    return ALARM if not found.adapted and found.shift_p <= RARE else code
