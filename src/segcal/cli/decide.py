"""``segcal decide``: masks by a rule, with what is guaranteed and what is expected of each."""

import argparse
from pathlib import Path

import segcal
from segcal.cli.console import Output
from segcal.cli.progress import case_bar
from segcal.cli.reading import load_calibrator, open_folders
from segcal.cli.wording import table
from segcal.decisions import RULES

ABOUT = {
    "usage": "segcal decide CAL PREDICTIONS... -o OUT --rule RULE [options]",
    "description": "Make masks by a rule. OUT gets a label map per case, or a mask per structure where masks may\n"
    "overlap (PNG or NIfTI), and decide.csv and decide.json: what is guaranteed and what is expected of each\n"
    "structure of each case. Run again, the command goes on with what is missing or changed. Rules:\n"
    + "\n".join(f"  {name + ('=NUMBER' if rule.promise else ''):<18} {rule.about}" for name, rule in RULES.items())
    + "\nRecall and precision need the labelled cases that segcal fit keeps for segcal trust.",
    "epilog": "example:\n  segcal decide calibrator/ predictions/ --kind logits -o masks/ --rule recall=0.95",
}
OPTIONS = ("overwrite", "ignore_pooling", "device", "workers")


def declare(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    option = parser.add_argument
    option("calibrator", type=Path, metavar="CAL", help="a folder written by segcal fit")
    option("paths", nargs="+", type=Path, metavar="PREDICTIONS", help="one folder, or one per member")
    option("-o", "--output", type=Path, required=True, metavar="OUT", help="a new folder")
    option("--rule", default="argmax", help="dice, recall=0.95, precision=0.9, volume or argmax (the default)")
    option("--all-classes", action="store_true", help="class 0 is a structure and no background")
    option("--overwrite", action="store_true", help="clear what another rule, calibrator or other cases made")
    option("--ignore-pooling", action="store_true", help="go on although it was fitted for other pooling")


def run(args: argparse.Namespace) -> int:
    """Decide, write, print."""
    output = Output(args.json)
    fitted = load_calibrator(args)
    cases = open_folders(args, args.paths, pooling=fitted.pooling)
    given = {name: getattr(args, name) for name in OPTIONS} | {"background": not args.all_classes}
    failed = None if args.strict else output.failed
    with case_bar("deciding", len(cases), args.quiet) as step:
        found = segcal.decide(fitted, cases, args.rule, args.output, progress=step, failed=failed, **given)
    rows = []
    for name in dict.fromkeys(row["structure"] for row in found.rows):
        own = [row for row in found.rows if row["structure"] == name]
        dice = [f"{sum(row[key] for row in own) / len(own):.4f}" for key in ("preserved_dice", "expected_dice")]
        changed, kept = (sum(row[key] for row in own) for key in ("changed_voxels", "preserved_voxels"))
        rows.append([name, *dice, f"{100 * changed / max(kept, 1):.1f} %"])
    output.say(table(("structure", "expected Dice: preserved", found.rule, "voxels changed"), rows), found.promise)
    output.written(found.written, args.output, found.already_there, found.stale)
    output.document(found.to_plain() | {"output": str(args.output)})
    return output.finish()
