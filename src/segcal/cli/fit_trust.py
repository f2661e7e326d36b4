"""The part of ``segcal fit`` that learns what ``segcal trust`` and ``segcal monitor`` compare with."""

import argparse

import segcal
from segcal.cases import Cases, FileCases
from segcal.cases.parallel import Workers
from segcal.cli.console import Output
from segcal.cli.reading import open_folders
from segcal.cli.wording import plural
from segcal.errors import InputError
from segcal.fitting import Fitted
from segcal.fitting.division import group_names
from segcal.fitting.reference import OUT_OF_FOLD

JUDGED = {
    "held out": "cases that had no part in the fit",
    "validation": "the cases that it was compared on",
    OUT_OF_FOLD: "the cases of the fit, each judged by a fit without it",
}


def remember(args: argparse.Namespace, fitted: Fitted, cases: FileCases, output: Output, workers: Workers) -> Fitted:
    """Return the calibrator with its reference cases, where there are any."""
    judges = _judges(args, fitted, cases)
    if judges is None:
        return fitted
    how = {"device": args.device, "workers": workers, "failed": None if args.strict else output.failed}
    fitted = segcal.learn_trust(fitted, judges, **how)
    assert fitted.reference is not None
    source, count = fitted.reference.source, len(fitted.reference.cases)
    command = "trust" if cases.regions is None else "decide"  # trust is for classes
    output.say(f"segcal {command} will compare with {plural(count, 'case')}: {JUDGED[source]}")
    if args.objects is not None:
        measure, at = args.object_rule
        rule = {"measure": measure, "at": at, "smallest": args.smallest_object}
        names = args.objects.split(",") if args.objects else None
        fitted = segcal.learn_objects(fitted, judges, structures=names, **rule, **how)
        assert fitted.objects is not None
        source, count = fitted.objects.source, len(fitted.objects.cases)
        output.say(f"segcal objects will compare with {plural(count, 'case')}: {JUDGED[source]}")
    return fitted


def _judges(args: argparse.Namespace, fitted: Fitted, cases: FileCases) -> Cases | None:
    if args.trust_predictions is not None:
        labels = args.trust_labels or (None if cases.label_folder is None else cases.label_folder.folder)
        return open_folders(args, args.trust_predictions, labels, pooling=fitted.pooling)
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
        if args.validation is None:
            return own.subset(fitted.validation_ids)
        labels = args.validation_labels or (None if cases.label_folder is None else cases.label_folder.folder)
        return open_folders(args, args.validation, labels, pooling=fitted.pooling).subset(fitted.validation_ids)
    if args.trust_on == "validation":
        raise InputError("--trust-on is validation, but there are no validation cases. Pass --validation, or folds.")
    learned = own.subset(fitted.calibration_ids)
    return learned if len(set(group_names(learned, learned.ids))) > 1 else None
