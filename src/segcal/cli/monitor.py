"""``segcal monitor``: a watch over a stream of cases, without labels."""

import argparse
from dataclasses import asdict
from pathlib import Path

import msgspec

import segcal
from segcal.cli.codes import ALARM
from segcal.cli.console import Output
from segcal.cli.progress import case_bar
from segcal.cli.reading import load_calibrator, open_folders
from segcal.cli.wording import plural, table

ABOUT = {
    "usage": "segcal monitor CAL PREDICTIONS... [--state FILE] [options]",
    "description": "Compare new cases with those that the calibrator remembers, in the order of their names: which\n"
    "are unusual, and whether the calibrator still applies. FILE keeps the stream: the next call goes on\n"
    "with cases that are not in it yet, also after a kill. Of each case it has numbers and no image.\n"
    "Exit code 4: the calibrator no longer applies.",
    "epilog": "example:\n  segcal monitor calibrator/ predictions/ --kind logits --state monitor.json",
}
FEW = "with {} reference draws no single one can be rarer than that; the stream as a whole is watched all the same"
OPTIONS = ("state", "rate", "stream_rate", "device", "workers")


def declare(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    option = parser.add_argument
    option("calibrator", type=Path, metavar="CAL", help="a folder written by segcal fit")
    option("paths", nargs="+", type=Path, metavar="PREDICTIONS", help="one folder, or one per member")
    option("--state", type=Path, metavar="FILE", help="where the stream is kept; default: nowhere")
    option("--rate", type=float, default=0.05, help="of usual cases that are called unusual (default 0.05)")
    option("--stream-rate", type=float, default=0.01, help="chance of a false alarm, ever (default 0.01)")
    option("--all-classes", action="store_true", help="class 0 is a structure and no background")


def run(args: argparse.Namespace) -> int:
    """Compare and print."""
    output = Output(args.json)
    fitted = load_calibrator(args)
    cases = open_folders(args, args.paths, pooling=fitted.pooling)
    given = {name: getattr(args, name) for name in OPTIONS} | {"background": not args.all_classes}
    with case_bar("comparing", len(cases), args.quiet) as step:
        failed = None if args.strict else output.failed
        found = segcal.monitor(fitted, cases, progress=step, failed=failed, **given)
    if found.unusual:
        rows = [
            [", ".join(draw.cases), f"{draw.rarity:.2g}", f"{draw.unusual} ({draw.deviation:+.1f} deviations)"]
            for draw in found.unusual
        ]
        output.say(table(("unusual", "p", "most in"), rows, text=True))
    output.say(
        f"{plural(found.new, 'draw')} added, {len(found.unusual)} of {len(found.draws)} unusual at a rate of "
        f"{found.rate:g}",
        *([FEW.format(found.reference_draws)] if found.reference_draws < 1 / found.rate - 1 else []),
        found.verdict,
        *found.alarms,
    )
    output.document(asdict(found) | {"draws": msgspec.to_builtins(found.draws), "applies": found.applies})
    code = output.finish()
    return code if found.applies else ALARM
