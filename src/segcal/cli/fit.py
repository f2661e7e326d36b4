"""``segcal fit``: the best calibrator that keeps the mask, or the one that is named; and what it rests on."""

import argparse
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import segcal
from segcal.calibrators import CALIBRATORS, PEERS
from segcal.cases import Cases, FileCases, load_split, save_split
from segcal.cases.check import ENOUGH_CASES
from segcal.cases.kept import ROOM
from segcal.cli import arguments as shared
from segcal.cli.call import Call
from segcal.cli.commands import Command, Role, argument, at_least_one, flag
from segcal.cli.console import Output, fit_line, plural, table
from segcal.errors import InputError
from segcal.fitting import Fitted
from segcal.fitting.artifact import check_vacant
from segcal.fitting.certificate import Certificate
from segcal.fitting.choice import Candidate, candidates_of
from segcal.fitting.comparison import read_part
from segcal.fitting.division import divide, group_names
from segcal.fitting.progress import Report
from segcal.fitting.reference import OUT_OF_FOLD
from segcal.fitting.scores import CASE_BINS
from segcal.pooling import BEST
from segcal.target import claim_beside

FIT_OPTIONS = ("lam", "mu", "voxels", "seed", "method", "verify")
JUDGED = {
    "held out": "cases that had no part in the fit",
    "validation": "the cases that it was compared on",
    OUT_OF_FOLD: "the cases of the fit, each judged by a fit without it",
}

KEPT = {"order": "keeps the order of the classes", "argmax": "keeps the mask", None: "may change the mask"}
ECE_NOTE = f"* is taken. ECE: {CASE_BINS} bins, mean over cases. ±: one standard error over groups"
HEADINGS = ("calibrator", "NLL", "ECE", "NLL against ts", "parameters")
WORSE = "are far worse than those of the other groups"
LOOK = "look at its labels and predictions, and keep it if both are right"
# Of many classes, those in the fewest groups are named.
MOST_NAMED = 12


def _fit(call: Call) -> int:
    args = call.args
    if args.part_id is None:
        check_vacant(args.output, args.overwrite)
    call.cases = call.open(*call.labelled, BEST).keeping(ROOM)
    assert call.cases.kept is not None
    call.cases.kept.disagreement = args.trust_on != "none" and args.part_id is None
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
        fitted = _remember(call, fitted, line)
        segcal.save(fitted, args.output, args.overwrite)
    return call.end(_show_fit(call, fitted))


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


def _others(call: Call, folders: list[Path], labels: list[Path] | None, pooling: str | None) -> FileCases:
    """Open other cases; their labels are in the folders of those of the fit unless others are named."""
    return call.open(folders, labels or [known.folder for known in call.cases.label_folders], pooling)


def _remember(call: Call, fitted: Fitted, line: Report | None) -> Fitted:
    """Return the calibrator with the cases that other commands compare with, where there are any."""
    args, judges = call.args, _judges(call, fitted)
    if judges is None:
        return fitted
    fitted = call.do(segcal.learn_trust, fitted, judges, progress=None, report=line)
    assert fitted.reference is not None
    command = "trust" if call.cases.regions is None else "decide"  # trust is for classes
    _say_judged(call, command, fitted.reference.source, fitted.reference.ids)
    if args.objects is not None:
        (measure, at), names = args.object_rule, args.objects.split(",") if args.objects else None
        rule = {"measure": measure, "at": at, "smallest": args.smallest_object}
        fitted = call.do(segcal.learn_objects, fitted, judges, structures=names, progress=None, **rule)
        assert fitted.objects is not None
        _say_judged(call, "objects", fitted.objects.source, {each.id for each in fitted.objects.cases})
    return fitted


def _say_judged(call: Call, command: str, source: str, cases: Collection[object]) -> None:
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
    if args.trust_on == "none" or (cases.raters is not None and (cases.regions or cases.raters.form == "shares")):
        return None
    if fitted.validation_ids and args.trust_on != "folds":
        if args.validation is not None:
            own = _others(call, args.validation, args.validation_labels, fitted.pooling)
        return own.subset(fitted.validation_ids)
    if args.trust_on == "validation":
        raise InputError("--trust-on is validation, but there are no validation cases. Pass --validation, or folds.")
    learned = own.subset(fitted.calibration_ids)
    return learned if len(set(group_names(learned, learned.ids))) > 1 else None


def _show_fit(call: Call, fitted: Fitted) -> dict[str, object]:
    """Print what was fitted and, if calibrators were compared, how it was chosen; return the document."""
    output, name, certificate = call.output, fitted.calibrator.name, fitted.certificate
    details, pooling = certificate.details, fitted.pooling
    if "regions" in details:
        own = {region: Certificate(**one) for region, one in details["regions"].items()}
        _print_regions(output, own, pooling)
    if found := candidates_of(details):
        chosen = _chosen(found, details["chosen"], pooling)
        name = chosen.title
        output.say("on held-out cases:", table(HEADINGS, _rows(found, chosen)), ECE_NOTE)
        output.say(*_not_taken(found, chosen), details["reason"])
        if worse := worse_than_nothing(found, chosen):
            output.warn(worse)
    output.say(*_sentences(fitted, f"{call.args.output}: {name}"))
    print_evidence(output, fitted)
    if not certificate.converged:
        output.warn("the fit did not reach its tolerance; the certificate in the calibrator says how far it came")
    facts = {key: getattr(fitted.calibrator, key) for key in ("preserves", "translation_invariant")}
    facts |= {key: getattr(fitted, key) for key in ("calibration_ids", "validation_ids")}
    reference = fitted.reference
    facts["trust"] = None if reference is None else {"source": reference.source, "cases": len(reference.ids)}
    return {"calibrator": str(call.args.output), "certificate": certificate.to_dict(), **facts}


def _print_regions(output: Output, regions: Mapping[str, Certificate], pooling: str | None) -> None:
    """Print the comparison of every region, and what was fitted to it."""
    rows, reasons = list[list[str]](), list[str]()
    for region, certificate in regions.items():
        details = certificate.details
        if found := candidates_of(details):
            chosen = _chosen(found, details["chosen"], pooling)
            rows += _rows(found, chosen, f"{region}: ")
            reasons += [f"{region}: {line}" for line in _not_taken(found, chosen)]
        reasons += [f"{region}: {details['reason']}"] if "reason" in details else []
    if rows:
        output.say("on held-out cases:", table(HEADINGS, rows), ECE_NOTE, *reasons)
    output.say("; ".join(f"{region}: NLL {certificate.nll:.5f}" for region, certificate in regions.items()))


def _chosen(found: Sequence[Candidate], name: str, pooling: str | None) -> Candidate:
    return next(one for one in found if (one.name, one.pooling) == (name, pooling))


def _rows(found: Sequence[Candidate], chosen: Candidate, region: str = "") -> list[list[str]]:
    """Return the row of every candidate."""
    rows = []
    for one in found:
        mean, error = one.against or (None, None)
        rows.append([
            f"{'*' if one is chosen else ' '}{region}{one.title}",
            "" if one.nll is None else f"{one.nll:.5f}",
            "" if one.ece is None else f"{one.ece:.4f}",
            "" if mean is None else f"{mean:+.5f}" + ("" if error is None else f" ± {error:.5f}"),
            f"{one.parameters:,}",
        ])  # fmt: skip
    return rows


def _not_taken(found: Sequence[Candidate], chosen: Candidate) -> list[str]:
    """Return why each candidate was not taken, those with the same reason in one line."""
    why: dict[str, list[str]] = {}
    for one in found:
        if one is not chosen and one.verdict != "reference":
            why.setdefault(one.verdict, []).append(one.title)
    return [f"  {verdict}: {', '.join(titles)}" for verdict, titles in why.items()]


def worse_than_nothing(found: Sequence[Candidate], chosen: Candidate) -> str:
    """Return that the ECE of what was taken is higher than without calibration, if so; the choice is by NLL."""
    plain = next((one.ece for one in found if (one.name, one.pooling) == ("identity", chosen.pooling)), None)
    if chosen.ece is None or plain is None or chosen.ece <= plain:
        return ""
    return f"its ECE on held-out cases, {chosen.ece:.4f}, is higher than without calibration, {plain:.4f}"


def _sentences(fitted: Fitted, title: str) -> list[str]:
    certificate, seen, others = fitted.certificate, len(fitted.calibration_ids), len(fitted.validation_ids)
    residual = "" if certificate.kkt_residual is None else f", residual {certificate.kkt_residual:.1e}"
    found = [
        f"{title}, {KEPT[fitted.calibrator.preserves]}; NLL {certificate.nll:.5f} on {certificate.voxels:,} of "
        f"{plural(certificate.voxels_available, 'voxel')}{residual}",
        f"fitted on {plural(seen, 'case')}{f', compared on {others} others' if others else ''}; the calibrator "
        "remembers which, and segcal evaluate reports them apart",
    ]
    if "edge" in certificate.details:
        found.append(f"of all strengths of the penalty, held-out cases chose {certificate.details['edge']}")
    if seen + others < ENOUGH_CASES:
        found.append(f"{plural(seen + others, 'case')} are few: with {ENOUGH_CASES} or more, the choice is steadier")
    return found


def print_evidence(output: Output, fitted: Fitted) -> None:
    """Print the groups per class and the sites that were held out, and warn of what should not be."""
    certificate, found = fitted.certificate, fitted.certificate.evidence
    if found is not None:
        names = fitted.class_names or [f"class {number}" for number in range(len(found.class_groups))]
        fewest = sorted(range(len(names)), key=lambda number: found.class_groups[number])[:MOST_NAMED]
        counts = list(zip(names, found.class_groups, found.class_voxels, strict=True))
        shown = ", ".join("{} {:,} ({:,})".format(*counts[number]) for number in sorted(fewest))
        rest = "" if len(names) <= MOST_NAMED else f"; all other classes in at least {found.class_groups[fewest[-1]]:,}"
        output.say(f"groups with each class, of {found.groups:,} (and voxels, about): {shown}{rest}")
        if found.sites:
            parts = ", ".join(f"{name} ({plural(count, 'group')})" for name, count in found.sites.items())
            what = "declared sites" if found.declared else "groups clustered by what is predicted"
            output.say(f"also held out, {what}: {parts}")
        for name, weight in found.weights.items():
            output.warn(f"predictions of {name} {WORSE}, so it counts {weight:.2f} times: {LOOK}")
        for name, times in found.failed.items():
            output.warn(f"predictions of {name} {WORSE}, with {times:.0f} times the upper quartile of NLL: {LOOK}")
        for name, change in found.influence.items():
            output.warn(f"without {name} the temperature would be {change:+.0%}: look at its labels and predictions")
    if certificate.active_bounds:
        several = "; ".join(certificate.active_bounds[:3])
        output.warn(
            f"{plural(len(certificate.active_bounds), 'parameter')} ended at a bound ({several}): the cases alone "
            "do not decide: more cases, or a simpler calibrator, would"
        )


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
    "scaling (which sees the neighbourhood of a voxel) among them, with both poolings of an ensemble. One that\n"
    "is not clearly better than a temperature (ts) is not taken.",
    "examples:\n  segcal fit predictions/ labels/ -o calibrator/ --kind logits --ignore 255\n"
    "  segcal fit member_*/ labels/ -o calibrator/ --kind logits --pooling mean_logits --calibrator ts",
    shared.LABELLED,
    shared.RATERS,
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
            argument("--seed", "of the split and of the voxel sample (default 0)", default=0),
            argument("--splits", "splits.json: used if it is there, else written",
                     lambda args: Role.READ if args.splits and args.splits.exists() else Role.FILE,
                     metavar="FILE"),
            argument("--validation", "predictions for validation alone", Role.CASES, nargs="+"),
            argument("--validation-labels", "their labels; default: LABELS", Role.CASES, nargs="+"),
        ),
        "what segcal trust, decide, objects and monitor compare with": (
            argument("--trust-on",
                     "labelled cases: those of the fit, each judged by a fit without it (folds), validation cases, "
                     "those of\n--test-share, or none; default: validation cases, or else folds",
                     choices=["folds", "validation", "test", "none"]),
            argument("--trust-predictions", "predictions of cases for this alone", Role.CASES, nargs="+"),
            argument("--trust-labels", "their labels; default: LABELS", Role.CASES, nargs="+"),
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
