"""``segcal margins``: grown and shrunk masks with stated coverage, where there are masks and no probabilities."""

import argparse
import re
from pathlib import Path

import msgspec

import segcal
from segcal.cli.console import Output
from segcal.cli.parsing import at_least_one
from segcal.cli.progress import case_bar
from segcal.cli.reading import json_option
from segcal.cli.wording import plural, table
from segcal.errors import InputError
from segcal.target import check_file

ABOUT = {
    "usage": "segcal margins fit PREDICTIONS... --labels LABELS -o MARGINS.json [options]\n"
    "       segcal margins apply PREDICTIONS... --margins MARGINS.json -o OUT [options]",
    "description": "fit: learn from labelled masks how far structures must be grown to cover the truth, and shrunk\n"
    "to lie in it. apply: write OUT/CASE/STRUCTURE (1 outer mask, 2 mask, 3 inner mask) of new masks, and print\n"
    "volumes with intervals. Masks are label maps: NIfTI, npy, npz or PNG. No probabilities are needed.",
    "epilog": "examples:\n  segcal margins fit predictions/ --labels labels/ -o margins.json\n"
    "  segcal margins apply new/ --margins margins.json -o grown/",
}
READ = ("labels", "groups", "class_names", "ignore", "label_axes", "ignore_geometry")
SIGNATURE = re.compile(rb'\{\s*"format": "segcal-margins"')


def declare(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    option = parser.add_argument
    option("action", choices=["fit", "apply"], metavar="fit|apply", help="what to do")
    option(
        "paths", nargs="+", type=Path, metavar="PREDICTIONS", help="folder of masks; or one per run, the first grown"
    )
    option("-o", "--output", type=Path, required=True, metavar="OUT", help="fit: a file; apply: a new folder")
    option("--ignore-geometry", action="store_true", help="go on although headers put files in different places")
    option("--workers", type=at_least_one, default=1, metavar="N", help="processes to use (default 1)")
    option("--strict", action="store_true", help="stop at the first case that fails, with exit code 2")
    option("--margins", type=Path, metavar="FILE", help="apply: written by segcal margins fit")
    json_option(parser)
    option = parser.add_argument_group("fit").add_argument
    option("--labels", type=Path, metavar="FOLDER", help="true label maps")
    option("--level", type=float, default=0.9, help="of new cases that are covered (default 0.9)")
    option("--share", type=float, default=0.95, help="of the structure that must be covered (default 0.95)")
    option("--on-average", action="store_true", help="the share on average over cases, not case by case")
    option("--class-names", type=lambda text: text.split(","), metavar="NAMES", help="of the labels 0, 1, ...")
    option("--groups", metavar="REGEX|CSV", help="cases that belong together, such as '(patient\\d+)_'")
    option("--ignore", type=int, metavar="LABEL", help="true label that does not count")
    option("--label-axes", choices=["xyz", "zyx", "zyx_ras"], help="of NIfTI labels beside other arrays")


def run(args: argparse.Namespace) -> int:
    """Fit or apply, and print."""
    output = Output(args.json)
    if (args.labels is None) == (args.action == "fit") or (args.margins is None) == (args.action == "apply"):
        raise InputError("--labels is for fit and --margins for apply, but each needs its own. Name it, and no other.")
    masks = segcal.MaskCases(args.paths, **{name: getattr(args, name) for name in READ})
    if args.action == "fit":
        check_file(args.output, SIGNATURE, [*args.paths, args.labels])
    with case_bar("measuring", len(masks.ids), args.quiet) as step:
        given = {"workers": args.workers, "progress": step, "failed": None if args.strict else output.failed}
        if args.action == "apply":
            rows = segcal.apply_margins(args.margins, masks, args.output, **given)
        else:
            found = segcal.fit_margins(masks, args.level, args.share, args.on_average, **given)
    if args.action == "apply":
        cells = [[*row[:2], *("" if each is None else f"{each:.4g}" for each in row[2:])] for row in rows if row.volume]
        output.say(table(("case", "structure", "volume", "from", "to"), cells))
        output.say(f"{plural(len({row.case for row in rows}), 'case')} written to {args.output}")
        output.document({"volumes": [row._asdict() for row in rows], "output": str(args.output)})
        return output.finish()
    found.save(args.output)
    cells = [[m.name, *("none" if each is None else f"{each:.3g}" for each in (m.outer, m.inner)), str(m.present)]
             for m in found.structures]  # fmt: skip
    output.say(table(("structure", f"outer, {found.unit}", f"inner, {found.unit}", "draws"), cells), str(found))
    output.say(f"written to {args.output}")
    output.document(msgspec.to_builtins(found) | {"output": str(args.output)})
    return output.finish()
