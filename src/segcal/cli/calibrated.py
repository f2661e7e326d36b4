"""``segcal apply``, ``view``, ``convert``, ``monitor``, ``adapt``: new cases, into a folder or beside known ones."""

from dataclasses import asdict

import msgspec

import segcal
from segcal.cli import arguments as shared
from segcal.cli.call import Call
from segcal.cli.commands import ALARM, DONE, Command, Role, argument, flag
from segcal.cli.console import plural, table
from segcal.fitting.artifact import check_vacant
from segcal.integrations.viewers import FORMS, LEVELS
from segcal.target import claim_beside
from segcal.trust.adapt import RARE


def _apply(call: Call) -> int:
    with call.engine(call.cases), call.bar("calibrating"):
        done = call.do(segcal.apply, call.fitted, call.own, call.args.output)
    if call.part is not None:
        return call.end_of_part()
    call.output.written(len(done.written), call.args.output, done.already_there, done.stale)
    if done.written:
        call.say(f"{done.flips:,} of {plural(done.voxels, 'voxel')} changed their class")
    return call.end(asdict(done) | {"voxels": done.voxels, "flips": done.flips})


APPLY = Command(
    _apply,
    "segcal apply CAL PREDICTIONS... -o OUT [options]",
    "Calibrate every case into a new folder, in the format that came in. Run again, the command goes\n"
    "on with what is missing or changed.",
    "example:\n  segcal apply calibrator/ predictions/ -o calibrated/ --kind logits --confidence-map",
    *shared.CALIBRATED,
    shared.target("OUT", "a new folder"),
    argument("--output-kind", "what to write; default: what came in", choices=["logits", "probs", "sigmoid"]),
    flag("--confidence-map", "also write one map per case for a viewer"),
    flag("--verify", "read every file back and compare it before it is put in place"),
    shared.overwrite("clear what another calibrator or other cases made"),
    *shared.POOLED,
    groups=shared.ON_CASES | shared.IN_PARTS,
)


def _view(call: Call) -> int:
    with call.bar("writing"):
        made = call.do(segcal.view, call.fitted, call.cases, call.args.output)
    call.say(f"{plural(len(made), 'file')} written to {call.args.output}")
    return call.end({"files": [str(path) for path in made]})


VIEW = Command(
    _view,
    "segcal view CAL PREDICTIONS... -o OUT [--to FORM] [options]",
    "Calibrate every case and write what a viewer opens, in the geometry of the predictions.",
    "examples:\n  segcal view calibrator/ predictions/ -o maps/ --to contours\n"
    "  segcal view calibrator/ predictions/ -o seg/ --to dicom-seg --series dicom/",
    *shared.CALIBRATED,
    shared.target("OUT", "a new folder"),
    argument("--to", "what to write (default nifti)", choices=FORMS, default="nifti"),
    argument("--levels", "of iso-contours", type=float, nargs="+", default=LEVELS, metavar="P"),
    argument("--series", "DICOM images, one sub-folder per case", Role.BESIDE),
    *shared.DICOM,
    shared.OWN_CLASS,
    groups=shared.ON_CASES,
)


def _convert(call: Call) -> int:
    with call.bar("converting"):
        done = call.do(segcal.convert, call.cases, call.args.output)
    call.output.written(len(done.written), call.args.output, done.already, done.stale)
    return call.end({"written": done.written, "already_there": done.already, "stale": done.stale})


CONVERT = Command(
    _convert,
    "segcal convert PREDICTIONS... -o STORE [--labels FOLDER] [options]",
    "Write pooled cases, with their labels, into segcal's own format, which needs no further options.\n"
    "Run again, the command goes on with what is missing or changed.",
    "example:\n  segcal convert member_*/ --labels labels/ -o store/ --kind logits --pooling mean_logits",
    shared.PREDICTIONS,
    argument("--labels", "label maps to keep with the scores", Role.CASES),
    shared.target("STORE", "where to write"),
    shared.overwrite("clear what other settings or other cases made"),
    groups=shared.ON_CASES,
)


def _monitor(call: Call) -> int:
    with call.bar("comparing"):
        found = call.do(segcal.monitor, call.fitted, call.cases, background=not call.args.all_classes)
    if found.unusual:
        call.say(table(("unusual", "p", "most in"), [draw.words() for draw in found.unusual], text=True))
    rare = f"{len(found.unusual)} of {len(found.draws)} unusual at a rate of {found.rate:g}"
    call.say(f"{plural(found.new, 'group')} added, {rare}", found.left_out, found.limit, found.verdict, *found.alarms)
    document = asdict(found) | {"draws": msgspec.to_builtins(found.draws), "applies": found.applies}
    return call.end(document, DONE if found.applies else ALARM)


MONITOR = Command(
    _monitor,
    "segcal monitor CAL PREDICTIONS... [--state FILE] [options]",
    "Compare new cases with those that the calibrator remembers, in the order of their names: which\n"
    "are unusual, and whether the calibrator still applies. FILE keeps the stream: the next call goes on\n"
    "with cases that are not in it yet, also after a kill. Of each case it has numbers and no image.\n"
    "Exit code 4: the calibrator no longer applies.",
    "example:\n  segcal monitor calibrator/ predictions/ --kind logits --state monitor.json",
    *shared.CALIBRATED,
    argument("--state", "where the stream is kept; default: nowhere", Role.FILE),
    argument("--rate", "of usual cases that are called unusual (default 0.05)", default=0.05),
    argument("--stream-rate", "chance of a false alarm, ever (default 0.01)", default=0.01),
    shared.ALL_CLASSES,
    shared.OWN_CLASS,
    groups=shared.ON_CASES,
)


def _adapt(call: Call) -> int:
    args = call.args
    check_vacant(args.output, args.overwrite)
    with claim_beside(args.output):
        with call.bar("reading"):
            found = call.do(segcal.adapt, call.fitted, call.cases)
        if found.adapted:
            segcal.save(found.fitted, args.output, args.overwrite)
    columns = zip(found.classes, found.before, found.after, found.ratio, strict=True)
    rows = [[name, f"{before:.2%}", f"{after:.2%}", f"{ratio:.2f}"] for name, before, after, ratio in columns]
    call.say(table(("class", "labelled cases", "here, estimated", "weight"), rows), found.verdict)
    if found.adapted:
        call.say(f"written to {args.output}; it has no reference cases, which segcal trust and monitor need")
    plain = {key: value for key, value in asdict(found).items() if key != "fitted"}
    shifted = not found.adapted and found.shift_p <= RARE
    return call.end(plain | {"output": str(args.output) if found.adapted else None}, ALARM if shifted else DONE)


ADAPT = Command(
    _adapt,
    "segcal adapt CAL PREDICTIONS... -o NEW [options]",
    "Estimate from predictions alone how frequent each class is at another site, and write a\n"
    "calibrator for it: probabilities are weighed, masks stay. Nothing is written if frequencies have\n"
    "not changed, or if more than frequencies has (exit code 4): that needs labels of the new site.",
    "example:\n  segcal adapt calibrator/ elsewhere/ --kind logits -o calibrator_elsewhere/",
    *shared.CALIBRATED,
    shared.target("NEW", "where the new calibrator goes"),
    argument("--method", "em: maximum likelihood (default); bbse: least squares", choices=["em", "bbse"], default="em"),
    shared.overwrite("replace a calibrator that is there, also one that is damaged"),
    *shared.POOLED,
    groups=shared.ON_CASES,
)
