"""``segcal decide`` and ``margins``: masks by a rule; and masks grown and shrunk where there is nothing else."""

import re

import msgspec

import segcal
from segcal.cli import arguments as shared
from segcal.cli.call import Call
from segcal.cli.commands import Command, Role, argument, flag, texts
from segcal.cli.console import plural, table
from segcal.decisions import RULES
from segcal.errors import InputError
from segcal.target import check_file

SIGNATURE = re.compile(rb'\{\s*"format": "segcal-margins"')


def _decide(call: Call) -> int:
    with call.engine(call.cases), call.bar("deciding"):
        options = {"folder": call.args.output, "background": not call.args.all_classes}
        found = call.do(segcal.decide, call.fitted, call.own, **options)
    if call.part is not None:
        return call.end_of_part()
    call.say(*found.parts())
    call.output.written(found.written, call.args.output, found.already_there, found.stale)
    return call.end(found.to_plain() | {"output": str(call.args.output)})


DECIDE = Command(
    _decide,
    "segcal decide CAL PREDICTIONS... -o OUT --rule RULE [options]",
    "Make masks by a rule. OUT gets a label map per case, or a mask per structure where masks may\n"
    "overlap (PNG or NIfTI), and decide.csv and decide.json: what is guaranteed and what is expected of each\n"
    "structure of each case. Run again, the command goes on with what is missing or changed. Rules:\n"
    + "\n".join(f"  {name + ('=NUMBER' if rule.promise else ''):<18} {rule.about}" for name, rule in RULES.items())
    + "\nRecall and precision need the labelled cases that segcal fit keeps for segcal trust.",
    "example:\n  segcal decide calibrator/ predictions/ --kind logits -o masks/ --rule recall=0.95",
    *shared.CALIBRATED,
    shared.target("OUT", "a new folder"),
    argument("--rule", "dice, recall=0.95, precision=0.9, volume or argmax (the default)", default="argmax"),
    shared.ALL_CLASSES,
    shared.overwrite("clear what another rule, calibrator or other cases made"),
    *shared.POOLED,
    groups=shared.ON_CASES | shared.IN_PARTS,
)


def _margins(call: Call) -> int:
    args, output = call.args, {"output": str(call.args.output)}
    if (args.labels is None) == (args.action == "fit") or (args.margins is None) == (args.action == "apply"):
        raise InputError("--labels is for fit and --margins for apply, but each needs its own. Name it, and no other.")
    masks = call.do(segcal.MaskCases, args.paths)
    if args.action == "apply":
        with call.bar("measuring", len(masks.ids)):
            rows = call.do(segcal.apply_margins, args.margins, masks, args.output)
        cells = [[*row[:2], *("" if each is None else f"{each:.4g}" for each in row[2:])] for row in rows if row.volume]
        call.say(table(("case", "structure", "volume", "from", "to"), cells))
        call.say(f"{plural(len({row.case for row in rows}), 'case')} written to {args.output}")
        return call.end({"volumes": [row._asdict() for row in rows], **output})
    check_file(args.output, SIGNATURE, [*args.paths, args.labels])
    with call.bar("measuring", len(masks.ids)):
        found = call.do(segcal.fit_margins, masks)
    found.save(args.output)
    cells = [[m.name, *("none" if each is None else f"{each:.3g}" for each in (m.outer, m.inner)), str(m.present)]
             for m in found.structures]  # fmt: skip
    call.say(table(("structure", f"outer, {found.unit}", f"inner, {found.unit}", "groups"), cells), str(found))
    call.say(f"written to {args.output}")
    return call.end(msgspec.to_builtins(found) | output)


MARGINS = Command(
    _margins,
    "segcal margins fit PREDICTIONS... --labels LABELS -o MARGINS.json [options]\n"
    "       segcal margins apply PREDICTIONS... --margins MARGINS.json -o OUT [options]",
    "fit: learn from labelled masks how far structures must be grown to cover the truth, and shrunk\n"
    "to lie in it. apply: write OUT/CASE/STRUCTURE (1 outer mask, 2 mask, 3 inner mask) of new masks, and print\n"
    "volumes with intervals. Masks are label maps: NIfTI, npy, npz or PNG. No probabilities are needed.",
    "examples:\n  segcal margins fit predictions/ --labels labels/ -o margins.json\n"
    "  segcal margins apply new/ --margins margins.json -o grown/",
    argument("action", "what to do", choices=["fit", "apply"], metavar="fit|apply"),
    argument("paths", "folder of masks; or one per run, the first grown", Role.CASES, nargs="+", metavar="PREDICTIONS"),
    shared.target(
        "OUT", "fit: a file; apply: a new folder", lambda args: Role.FILE if args.action == "fit" else Role.FOLDER
    ),
    flag("--ignore-geometry", "go on although headers put files at different positions"),
    shared.WORKERS,
    shared.STRICT,
    argument("--margins", "apply: written by segcal margins fit", Role.READ),
    *shared.JSON,
    groups={
        "fit": (
            argument("--labels", "true label maps", Role.CASES),
            argument("--level", "of new cases that are covered (default 0.9)", default=0.9),
            argument("--share", "of the structure that must be covered (default 0.95)", default=0.95),
            flag("--on-average", "the share on average over cases, not case by case"),
            argument("--class-names", "of the labels 0, 1, ...", type=texts, metavar="NAMES"),
            argument(
                "--groups", "cases that belong together, such as '(patient\\d+)_'", Role.TABLE, metavar="REGEX|CSV"
            ),
            argument("--ignore", "true label that does not count", type=int, metavar="LABEL"),
            argument("--label-axes", "of NIfTI labels beside other arrays", choices=["xyz", "zyx", "zyx_ras"]),
        )
    },
)
