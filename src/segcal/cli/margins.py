"""``segcal margins``: grown and shrunk masks with stated coverage, where there are masks and no probabilities."""

import argparse
import re
from pathlib import Path

import msgspec

import segcal
from segcal.cli.console import Output
from segcal.cli.parsing import at_least_one, numbers
from segcal.cli.progress import case_bar
from segcal.cli.reading import json_option
from segcal.cli.wording import plural, table
from segcal.errors import InputError
from segcal.target import check_file

ABOUT = {
    "usage": "segcal margins fit PREDICTIONS... --labels LABELS -o MARGINS.json [options]\n"
    "       segcal margins apply PREDICTIONS... --margins MARGINS.json -o OUT [options]",
    "description": "fit: learn from labelled masks how far each structure must be grown to cover the truth, and shrunk\n"
    "to lie in it. apply: write OUT/CASE/STRUCTURE (1 outer mask, 2 mask, 3 inner mask) for new masks, and print\n"
    "volumes with intervals. Masks are label maps: NIfTI, npy, npz or PNG. No probabilities are needed.",
    "epilog": "examples:\n  segcal margins fit predictions/ --labels labels/ -o margins.json\n"
    "  segcal margins apply new/ --margins margins.json -o grown/",
}
OPTIONS = ("level", "share", "on_average", "unit", "structures")
SIGNATURE = re.compile(rb'\{\s*"format": "segcal-margins"')


def declare(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    option = parser.add_argument
    option("action", choices=["fit", "apply"], metavar="fit|apply", help="what to do")
    option("paths", nargs="+", type=Path, metavar="PREDICTIONS", help="folder of masks, or one per run, the first grown")
    option("-o", "--output", type=Path, required=True, metavar="OUT", help="fit: a file; apply: a new folder")
    option("--ignore-geometry", action="store_true", help="go on although headers put files in different places")
    option("--workers", type=at_least_one, default=1, metavar="N", help="processes to use (default 1)")
    option("--strict", action="store_true", help="stop at the first case that fails, with exit code 2")
    json_option(parser)
    option = parser.add_argument_group("fit").add_argument
    option("--labels", type=Path, metavar="FOLDER", help="true label maps")
    option("--level", type=float, default=0.9, help="of new cases that are covered (default 0.9)")
    option("--share", type=float, default=0.95, help="of the structure that must be covered (default 0.95)")
    option("--on-average", action="store_true", help="the share on average over cases, not case by case")
    option("--unit", choices=["mm", "voxels"], help="default mm where predictions have a voxel size")
    option("--structures", type=numbers, metavar="LABELS", help="such as 1,5 (default all but 0)")
    option("--class-names", type=lambda text: text.split(","), metavar="NAMES", help="of labels 0, 1, ...")
    option("--groups", metavar="REGEX|CSV", help="cases that belong together, such as '(patient\\d+)_'")
    option("--ignore", type=int, metavar="LABEL", help="true label that does not count")
    option("--label-axes", choices=["xyz", "zyx", "zyx_ras"], help="of NIfTI labels beside other arrays")
    option = parser.add_argument_group("apply").add_argument
    option("--margins", type=Path, metavar="FILE", help="written by segcal margins fit")
    option("--form", choices=["nested", "outer", "inner"], default="nested", help="all masks (default), or one as 1")


def run(args: argparse.Namespace) -> int:
    """Fit or apply, and print."""
    output = Output(args.json)
    need = args.labels if args.action == "fit" else args.margins
    if need is None:
        raise InputError("--labels or --margins is missing, but fit needs the first and apply the second. Name it.")
    labels = args.labels if args.action == "fit" else None
    masks = segcal.MaskCases(args.paths, labels, args.groups, args.class_names, args.ignore, args.label_axes,
                             args.ignore_geometry)  # fmt: skip
    given = {"workers": args.workers, "failed": None if args.strict else output.failed}
    if args.action == "fit":
        check_file(args.output, SIGNATURE, [*args.paths, args.labels])
        with case_bar("measuring", len(masks.ids), args.quiet) as step:
            found = segcal.fit_margins(masks, **{name: getattr(args, name) for name in OPTIONS}, progress=step, **given)
        found.save(args.output)
        shown = [[m.name, *(f"{v:.3g}" if v is not None else "none" for v in (m.outer, m.inner)), *map(str, m.draws[:2])]
                 for m in found.structures]  # fmt: skip
        head = ("structure", f"outer, {found.unit}", f"inner, {found.unit}", "draws with it", "with a mask")
        output.say(table(head, shown), f"{found}", f"written to {args.output}")
        output.document(msgspec.to_builtins(found))
        return output.finish()
    with case_bar("growing", len(masks.ids), args.quiet) as step:
        rows = segcal.apply_margins(args.margins, masks, args.output, args.form, progress=step, **given)
    shown = [[r.case, r.structure, f"{r.volume:.4g}", "" if r.low is None else f"{r.low:.4g} to {r.high:.4g}"]
             for r in rows if r.volume]  # fmt: skip
    output.say(table(("case", "structure", "volume", "interval"), shown))
    output.say(f"{plural(len({row.case for row in rows}), 'case')} written to {args.output}")
    output.document({"volumes": [row._asdict() for row in rows], "output": str(args.output)})
    return output.finish()
