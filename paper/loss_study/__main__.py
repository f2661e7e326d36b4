"""The study of training losses, with and without calibration afterwards, on the embedded tasks.

    python -m paper.loss_study run --out study --main --tasks roads --seeds 1
    python -m paper.loss_study docs paper/results/losses.jsonl --docs docs
    python -m paper.loss_study real ROOT --out real --device cuda
    python -m paper.loss_study real-rows paper/results/real_losses.jsonl --docs docs

The first trains small networks with every loss, measures them without and with calibration, and writes figures, and
rows as those of the board; the same command goes on from where it was stopped. Everything takes half an hour on a large
GPU with 16 cores, and days on two cores: there, use --main or --small. The second writes the board's rows again, from
the lines of the study. The third asks the same of real data (:mod:`paper.loss_study.real`), which `pack` makes small
enough to travel, and the fourth writes its rows of the board.
Exit codes: 0 done; 2 a mistake, in one sentence; 3 networks are missing; 130 interrupted.
"""

import argparse
import importlib.util
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from paper.loss_study.real import LOSSES as REAL_LOSSES
from paper.loss_study.real import SIZES, RealStudy, plan_real
from paper.loss_study.real_data import TASKS as REAL_TASKS
from paper.loss_study.real_data import find_parts, pack_root
from paper.loss_study.real_rows import write_real_rows
from paper.loss_study.real_run import RealRun, run_real
from paper.loss_study.run import run_study
from paper.loss_study.study import Study
from paper.loss_study.study_rows import write_docs, write_study
from segcal.demo.tasks import TASKS
from segcal.errors import InputError, SegcalError
from segcal.target import claim

LINES = "losses.jsonl"


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of both commands."""
    parser = argparse.ArgumentParser(
        prog="python -m paper.loss_study",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    docs = commands.add_parser("docs", help="write docs/board/losses.csv and its pictures again")
    docs.add_argument("lines", nargs="+", type=Path, metavar="LINES")
    docs.add_argument("--docs", type=Path, required=True, metavar="DIR")
    run = commands.add_parser("run", help="train, measure and write rows and figures, or go on with it")
    run.add_argument("--out", type=Path, required=True, metavar="DIR", help="cases, weights, results, rows and figures")
    run.add_argument("--device", default="cpu", metavar="NAME", help="where to train; default: cpu")
    _add_processes(run)
    run.add_argument("--seeds", type=_count, default=3, metavar="N", help="networks of each kind; default: 3")
    run.add_argument(
        "--tasks", nargs="+", default=list(TASKS), choices=list(TASKS), metavar="NAME", help="default: all"
    )
    run.add_argument("--main", action="store_true", help="the main table only: no ablations, backbones or shares")
    run.add_argument("--small", action="store_true", help="two epochs on a few cases, to try everything out")
    run.add_argument("--hours", type=_time, default=math.inf, metavar="H", help="begin nothing new after so long")
    run.add_argument("--json", action="store_true", help="print one JSON document on stdout and nothing else there")
    real = commands.add_parser("real", help="the same question on real data; see paper/loss_study/real.py")
    real.add_argument("root", type=Path, metavar="ROOT", help="the folder with cardiac/ and camvid/")
    real.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="weights, results and the lines of the rows"
    )
    real.add_argument("--device", default="cpu", metavar="NAME", help="where to train; default: cpu")
    real.add_argument("--seeds", type=_count, default=3, metavar="N", help="networks of each kind; default: 3")
    real.add_argument("--steps", type=_count, default=1000, metavar="N", help="of a training; default: 1000")
    real.add_argument("--cases", type=_count, metavar="N", help="at most so many of each part, to try it out")
    real.add_argument("--minutes", type=_time, default=math.inf, metavar="M", help="stop after so long")
    _add_processes(real)
    for option, known in (("--tasks", list(REAL_TASKS)), ("--losses", list(REAL_LOSSES)), ("--sizes", list(SIZES))):
        real.add_argument(option, nargs="+", default=known, choices=known, metavar="NAME", help="default: all")
    small = commands.add_parser("pack", help="write the folder of the real data again, small enough to travel")
    small.add_argument("root", type=Path, metavar="ROOT")
    small.add_argument("--out", type=Path, required=True, metavar="DIR")
    rows = commands.add_parser("real-rows", help="write docs/board/losses_real.csv from the lines of `real`")
    rows.add_argument("lines", nargs="+", type=Path, metavar="LINES")
    rows.add_argument("--docs", type=Path, required=True, metavar="DIR")
    return parser


def _add_processes(parser: argparse.ArgumentParser) -> None:
    for option, text in (
        ("--trainers", "processes that train"),
        ("--at-once", "networks each of them trains side by side"),
        ("--measurers", "processes that measure"),
    ):
        parser.add_argument(option, type=_count, default=1, metavar="N", help=text)


def run(options: argparse.Namespace) -> int:
    """Run the study, say what is missing and where the rows are, and return the exit code."""
    study = Study(
        folder=options.out,
        lines=options.out / LINES,
        device=options.device,
        trainers=options.trainers,
        at_once=options.at_once,
        measurers=options.measurers,
        deadline=3600 * options.hours,
        seeds=options.seeds,
        tasks=tuple(options.tasks),
        main=options.main,
        small=options.small,
    )
    total = len(study.units())
    with claim(options.out):
        missing = run_study(study, lambda text: print(text, file=sys.stderr, flush=True))
        rows = write_study([study.lines], options.out) if missing < total else None
    if options.json:
        found = {"rows": str(rows) if rows else None, "lines": str(study.lines), "missing": missing}
        print(json.dumps(found, indent=1))
        return 3 if missing else 0
    print(f"Written: {rows}, {study.lines}" if rows else "No network is measured yet, so there are no rows.")
    if missing:
        noun = "network" if missing == 1 else "networks"
        print(f"{missing} {noun} of {total} missing: run the command again to go on.")
    return 3 if missing else 0


def real(options: argparse.Namespace) -> int:
    """Run the study on real data and return the exit code."""
    for task in options.tasks:  # what is wrong with the folder is said before anything is trained
        find_parts(options.root, task)
    study = RealStudy(options.root, options.device, options.steps, options.cases)
    units = plan_real(options.tasks, options.losses, options.sizes, options.seeds)
    processes = (options.trainers, options.at_once, options.measurers)
    missing = run_real(
        RealRun(study, options.out, units, *processes, minutes=options.minutes),
        lambda text: print(text, file=sys.stderr, flush=True),
    )
    print(f"{len(units) - missing} of {len(units)} networks are in {options.out}")
    return 3 if missing else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; a mistake is one sentence on stderr."""
    options = make_parser().parse_args(arguments)
    try:
        if (
            options.command in ("run", "docs") and importlib.util.find_spec("matplotlib") is None
        ):  # said now, not after hours
            raise InputError(
                "matplotlib is not installed, but figures need it. Install it with: pip install 'segcal[report]'."
            )
        if options.command == "run":
            return run(options)
        if options.command == "real":
            return real(options)
        if options.command == "pack":
            pack_root(options.root, options.out)
            return 0
        if options.command == "real-rows":
            write_real_rows(options.lines, options.docs / "board")
            return 0
        write_docs(options.lines, options.docs)
    except (SegcalError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted: what is written is complete; run the command again to go on", file=sys.stderr)
        return 130
    return 0


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no count, but a whole number of at least 1 is needed")
    return int(text)


def _time(text: str) -> float:
    if not float(text) > 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no time, but a number above 0 is needed")
    return float(text)


if __name__ == "__main__":
    sys.exit(main())
