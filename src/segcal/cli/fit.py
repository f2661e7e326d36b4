"""``segcal fit``: the best calibrator that keeps the mask, or the one that is named."""

import argparse
from collections.abc import Sequence
from pathlib import Path

import segcal
from segcal.calibrators import CALIBRATORS, PEERS
from segcal.cases import Cases, FileCases, load_split, save_split, split_folders
from segcal.cli import arguments as shared
from segcal.cli.call import Call
from segcal.cli.commands import Command, Role, argument, at_least_one, flag
from segcal.cli.console import fit_line, plural
from segcal.cli.fit_result import show_fit
from segcal.errors import InputError
from segcal.fitting import Fitted
from segcal.fitting.artifact import check_vacant
from segcal.fitting.comparison import read_part
from segcal.fitting.division import divide, group_names
from segcal.fitting.reference import OUT_OF_FOLD
from segcal.pooling import BEST
from segcal.target import claim_beside

FIT_OPTIONS = ("lam", "mu", "voxels", "seed", "method", "verify")
JUDGED = {
    "held out": "cases that had no part in the fit",
    "validation": "the cases that it was compared on",
    OUT_OF_FOLD: "the cases of the fit, each judged by a fit without it",
}


def _fit(call: Call) -> int:
    args = call.args
    if args.part_id is None:
        check_vacant(args.output, args.overwrite)
    call.cases = call.open(*split_folders(args.paths), BEST)
    calibration, validation = _divide(call)
    config = segcal.FitConfig(**{name: getattr(args, name) for name in FIT_OPTIONS})
    names = None if args.calibrator is None else [args.calibrator]
    used = [calibration] if validation is None else [calibration, validation]
    with claim_beside(args.output), call.engine(*used), fit_line("fitting", args.quiet) as line:
        how = {"validation": validation, "config": config, "progress": line}
        if call.part is not None:
            call.do(read_part, calibration, names=names, **how)
            return call.end_of_part()
        if args.calibrator is not None and len(call.cases.poolings) == 1:
            fitted = call.do(segcal.fit, args.calibrator, calibration, **how)
        else:  # a name alone leaves the pooling to be chosen
            fitted = call.do(segcal.choose, calibration, names=names, **how)
        fitted = _remember(call, fitted)
        segcal.save(fitted, args.output, args.overwrite)
    return call.end(show_fit(call, fitted))


def _divide(call: Call) -> tuple[Cases, Cases | None]:
    """Return the cases to learn from, and those to compare on if they are others."""
    args = call.args
    if args.validation is not None:
        own = {member.folder.resolve() for member in call.cases.members}
        shared = next((path for path in args.validation if path.resolve() in own), None)
        if shared is not None:
            raise InputError(
                f"--validation is {shared}, but calibration cases cannot judge the fit. Leave it out to have the cases "
                "divided."
            )
        return call.cases, _others(call, args.validation, args.validation_labels, BEST)
    if args.splits is not None and args.splits.exists():
        split = load_split(call.cases, args.splits)
    else:
        split = divide(call.cases, args.val_share or 0.0, args.test_share, args.seed)
        if args.splits is not None:
            save_split(split, args.splits, args.seed)
    return split.cal, split.val if len(split.val) else None


def _others(call: Call, folders: list[Path], labels: Path | None, pooling: str | None) -> FileCases:
    """Open other cases; their labels are in the folder of those of the fit unless another one is named."""
    known = call.cases.label_folder
    return call.open(folders, labels or (None if known is None else known.folder), pooling)


def _remember(call: Call, fitted: Fitted) -> Fitted:
    """Return the calibrator with the cases that other commands compare with, where there are any."""
    args, judges = call.args, _judges(call, fitted)
    if judges is None:
        return fitted
    fitted = call.do(segcal.learn_trust, fitted, judges, progress=None)
    assert fitted.reference is not None
    command = "trust" if call.cases.regions is None else "decide"  # trust is for classes
    _say_judged(call, command, fitted.reference.source, fitted.reference.cases)
    if args.objects is not None:
        (measure, at), names = args.object_rule, args.objects.split(",") if args.objects else None
        rule = {"measure": measure, "at": at, "smallest": args.smallest_object}
        fitted = call.do(segcal.learn_objects, fitted, judges, structures=names, progress=None, **rule)
        assert fitted.objects is not None
        _say_judged(call, "objects", fitted.objects.source, fitted.objects.cases)
    return fitted


def _say_judged(call: Call, command: str, source: str, cases: Sequence[object]) -> None:
    call.say(f"segcal {command} will compare with {plural(len(cases), 'case')}: {JUDGED[source]}")


def _judges(call: Call, fitted: Fitted) -> Cases | None:
    args, cases = call.args, call.cases
    if args.trust_predictions is not None:
        return _others(call, args.trust_predictions, args.trust_labels, fitted.pooling)
    own = cases.pooled(fitted.pooling) if fitted.pooling in cases.poolings else cases
    if args.trust_on == "test":
        seen = {*fitted.calibration_ids, *fitted.validation_ids}
        unseen = own.subset([case_id for case_id in own.ids if case_id not in seen])
        if not len(unseen):
            raise InputError("--trust-on is test, but no case was left unseen. Pass --test-share, or other folders.")
        return unseen
    if args.trust_on == "none":
        return None
    if fitted.validation_ids and args.trust_on != "folds":
        if args.validation is not None:
            own = _others(call, args.validation, args.validation_labels, fitted.pooling)
        return own.subset(fitted.validation_ids)
    if args.trust_on == "validation":
        raise InputError("--trust-on is validation, but there are no validation cases. Pass --validation, or folds.")
    learned = own.subset(fitted.calibration_ids)
    return learned if len(set(group_names(learned, learned.ids))) > 1 else None


def _voxels(text: str) -> int | str:
    """Return a count of voxels, or "all"."""
    return text if text == "all" else at_least_one(text)


def _object_rule(text: str) -> tuple[str, float]:
    """Return the measure and the share of "iou=0.1"."""
    name, _, share = text.partition("=")
    try:
        return name, float(share)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no rule, but iou=SHARE or overlap=SHARE is needed") from None


FIT = Command(
    _fit,
    "segcal fit PREDICTIONS... LABELS -o CAL [options]",
    "Compare calibrators on cases that are held out in turn, fit the winner to all cases, save it.\n"
    "By default calibrators compete that ignore the logit offset and keep the mask, conic\n"
    "scaling (which looks around the voxel) among them, with both poolings of an ensemble. One that\n"
    "is not clearly better than a temperature (ts) is not taken.",
    "examples:\n  segcal fit predictions/ labels/ -o calibrator/ --kind logits --ignore 255\n"
    "  segcal fit member_*/ labels/ -o calibrator/ --kind logits --pool mean_logits --calibrator ts",
    shared.LABELLED,
    shared.target("CAL", "where the calibrator goes"),
    shared.overwrite("replace a calibrator that is there, also one that is damaged"),
    argument("--calibrator", "this one, without a comparison; see docs/calibrators.md", metavar="NAME",
             choices=[*dict.fromkeys((*CALIBRATORS, *PEERS))]),
    argument("--preserve", "what must be kept (default argmax)", choices=["order", "argmax", "none"],
             default="argmax"),
    flag("--allow-offset-dependent", "calibrators such as vs and ms compete"),
    groups={
        **shared.ON_CASES,
        "which cases": (
            argument("--val-share",
                     "compare on this share of the cases alone; default: hold out whole groups of all cases in turn",
                     type=float, metavar="SHARE"),
            argument("--test-share", "left unseen, for segcal evaluate (default 0)", type=float, default=0,
                     metavar="SHARE"),
            argument("--seed", "of the division and of the voxel sample (default 0)", default=0),
            argument("--splits", "splits.json: used if it is there, else written",
                     lambda args: Role.READ if args.splits and args.splits.exists() else Role.FILE,
                     metavar="FILE"),
            argument("--validation", "predictions for validation alone", Role.CASES, nargs="+"),
            argument("--validation-labels", "their labels; default: LABELS", Role.CASES),
        ),
        "what segcal trust, decide, objects and monitor compare with": (
            argument("--trust-on",
                     "labelled cases: those of the fit, each judged by a fit without it (folds), validation cases, "
                     "those of\n--test-share, or none; default: validation cases, or else folds",
                     choices=["folds", "validation", "test", "none"]),
            argument("--trust-predictions", "predictions of cases for this alone", Role.CASES, nargs="+"),
            argument("--trust-labels", "their labels; default: LABELS", Role.CASES),
            argument("--objects",
                     "also learn which connected components are real, for segcal objects; of these structures "
                     "(a,b,...) alone", nargs="?", const="", metavar="NAMES"),
            argument("--object-rule",
                     "an object is real if its iou or overlap with one of the labels is at least this (default "
                     "iou=0.1)", type=_object_rule, default=("iou", 0.1), metavar="MEASURE=SHARE"),
            argument("--smallest-object", "components of fewer voxels are no objects (default 1)", type=at_least_one,
                     default=1, metavar="VOXELS"),
        ),
        "how to fit": (
            argument("--voxels", "of each case (default 20000)", type=_voxels, default=20_000, metavar="N|all"),
            argument("--lam", "strength on off-diagonal weights; default: chosen on held-out cases", type=float),
            argument("--mu", "strength on biases; default: chosen on held-out cases", type=float),
            argument("--method", "paper: Adam and a search", choices=["exact", "paper"], default="exact"),
            flag("--verify", "also give the residual on all voxels"),
        ),
        **shared.IN_PARTS,
    },
)  # fmt: skip
