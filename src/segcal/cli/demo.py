"""``segcal demo``: the whole story on data that the package carries."""

import argparse
import os
from pathlib import Path

from segcal.cli.codes import DONE
from segcal.cli.console import Output
from segcal.cli.progress import step_bar
from segcal.cli.reading import json_option
from segcal.demo.story import full_plan, quick_plan, tell_story
from segcal.errors import InputError
from segcal.kernels.loops import was_compiled
from segcal.kernels.reliability_numba import count_block
from segcal.target import claim

EXAMPLE = "example:\n  segcal demo --out demo-results"
# Each process needs about half a gigabyte.
MOST_WORKERS = 4


ABOUT = {
    "description": "Predict three embedded tasks with trained ensembles, calibrate, compare, and say what was found.",
    "epilog": EXAMPLE,
}


def declare(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("--out", type=Path, default=Path("demo-results"), metavar="DIR", help="default: demo-results")
    parser.add_argument("--full", action="store_true", help="nothing reduced: the paper's protocol; takes hours")
    parser.add_argument("--workers", type=int, metavar="N", help="processes to use; default: one per core, at most 4")
    json_option(parser)


def run(args: argparse.Namespace) -> int:
    """Run the demonstration and print what it found."""
    output = Output(args.json)
    workers = min(os.cpu_count() or 1, MOST_WORKERS) if args.workers is None else args.workers
    if workers < 1:
        raise InputError(f"--workers is {workers}, but at least 1 is needed. Leave it out to use all cores.")
    if not was_compiled(count_block):
        output.say("The first run on a machine compiles what it counts with and keeps it: about a minute more, once.")
    plan = full_plan(workers) if args.full else quick_plan(workers)
    with claim(args.out), step_bar("demo", args.quiet) as show:
        story = tell_story(plan, args.out, show)
    output.say(story.table, "What was found:", *(f"- {sentence}" for sentence in story.verdict))
    if story.reduced:
        output.say("Reduced, to take minutes (segcal demo --full runs everything):")
        output.say(*(f"- {text}" for text in story.reduced))
    output.say(*(f"no {name} study: {reason}" for name, reason in story.left_out.items()))
    output.say("Written:", *(f"- {path}" for path in story.written))
    output.document(story.to_plain())
    return DONE
