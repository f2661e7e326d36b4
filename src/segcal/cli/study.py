"""``segcal study``: a study of training losses, with and without calibration afterwards, on the embedded tasks."""

import argparse
import importlib.util
import math
import sys
from pathlib import Path
from typing import Any

from segcal.cli.console import DONE, SOME_FAILED, Output
from segcal.cli.parsing import at_least_one, device, hours
from segcal.cli.wording import plural
from segcal.demo.loss_study.page import write_page
from segcal.demo.loss_study.run import Study, run_study
from segcal.demo.tasks import TASKS
from segcal.errors import InputError
from segcal.target import claim

EXAMPLE = "example:\n  segcal study losses --out study --main --tasks roads --seeds 1"
ARCHIVE = "losses.zip"


def add(commands: Any, name: str) -> argparse.ArgumentParser:
    """Declare the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help="train with every loss, calibrate afterwards, compare",
        description=(
            "Train small networks on the embedded tasks with every loss, measure them without and\n"
            "with calibration, and write a page of tables and figures. The same command goes on from\n"
            "where it was stopped. Everything takes half an hour on a large GPU with 16 cores, and days\n"
            "on two cores: there, use --main or --small."
        ),
        epilog=EXAMPLE,
    )
    parser.add_argument("subject", choices=["losses"], help="what is studied")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="cases, weights, results and the page")
    parser.add_argument("--device", type=device, default="cpu", metavar="NAME", help="where to train; default: cpu")
    parser.add_argument("--trainers", type=at_least_one, default=1, metavar="N", help="processes that train")
    parser.add_argument(
        "--at-once", type=at_least_one, default=1, metavar="N", help="networks each trains side by side"
    )
    parser.add_argument("--measurers", type=at_least_one, default=1, metavar="N", help="processes that measure")
    parser.add_argument("--seeds", type=at_least_one, default=3, metavar="N", help="networks of each kind; default: 3")
    parser.add_argument(
        "--tasks", nargs="+", default=list(TASKS), choices=list(TASKS), metavar="NAME", help="default: all"
    )
    parser.add_argument("--main", action="store_true", help="the main table only: no ablations, backbones or shares")
    parser.add_argument("--small", action="store_true", help="two epochs on a few cases, to try everything out")
    parser.add_argument("--hours", type=hours, default=math.inf, metavar="H", help="begin nothing new after so long")
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout and nothing else there")
    return parser


def run(args: argparse.Namespace) -> int:
    """Run the study and say what is missing and where the page is."""
    if importlib.util.find_spec("matplotlib") is None:  # said now, not after hours
        raise InputError(
            "matplotlib is not installed, but figures need it. Install it with: pip install 'segcal[report]'."
        )
    output = Output(args.json)
    study = Study(
        folder=args.out,
        archive=args.out / ARCHIVE,
        device=args.device,
        trainers=args.trainers,
        at_once=args.at_once,
        measurers=args.measurers,
        deadline=3600 * args.hours,
        seeds=args.seeds,
        tasks=tuple(args.tasks),
        main=args.main,
        small=args.small,
    )
    with claim(args.out):
        missing = run_study(study, lambda text: print(text, file=sys.stderr, flush=True))
        measured = missing < len(study.units())
        page = write_page([study.archive], args.out, args.small, missing) if measured else None
    output.say(f"Written: {page}, {study.archive}" if page else "No network is measured yet, so there is no page.")
    if missing:
        output.say(f"{plural(missing, 'network')} of {len(study.units())} missing: run the command again to go on.")
    output.document({"page": str(page) if page else None, "archive": str(study.archive), "missing": missing})
    return SOME_FAILED if missing else DONE
