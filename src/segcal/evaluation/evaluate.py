"""Measure the cases of a collection before and after calibration.

Cases are read one at a time. What is kept of each is a row of numbers and, for metrics that pool voxels over cases, one
small table. Means and intervals do not depend on the order of the cases: they are taken in the order of their ids.
Intervals draw whole groups where cases belong to some (:mod:`segcal.resample`).

Before: the softmax of the case's logits. After: the calibrator's scores, normalised the same way. The prediction after
calibration stays the one before wherever no other class is strictly above it in the scores.

Numbers of cases that a calibrator was fitted or chosen on are too favourable. They are measured too, but apart
(:func:`evaluate_by_part`).
"""

import copy
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import torch

from segcal.arguments import typed
from segcal.calibrators.base import Calibrator
from segcal.cases import as_cases
from segcal.cases.base import Case, CaseError, Cases
from segcal.cases.files import FileCases
from segcal.cases.parallel import Failures, Workers, map_cases
from segcal.cases.records import read_marker
from segcal.cases.suspicion import Suspicion, other_origin, suspect_kind, warn, wrong_kinds
from segcal.errors import InputError
from segcal.evaluation.case_counter import Counter, Map, Stage, region_metrics, summarise
from segcal.evaluation.result import Evaluation, Row
from segcal.evaluation.slabs import as_seen
from segcal.fitting.certificate import Fitted
from segcal.fitting.fit import check_device
from segcal.fitting.reference import calibrator_digest
from segcal.metrics import Metric, find_metrics, rater_metrics, with_convention
from segcal.names import clean
from segcal.resample import LEVEL, REPLICATES, Draws
from segcal.statistics import BandCache, CaseTables

Opened = TypeVar("Opened", bound=Cases)
DEFAULT_METRICS = (
    "nll", "brier", "ece", "ba_ece", "ace", "cece", "dice", "miou", "accuracy", "aurc",
    "flip_rate", "harmful_flips", "beneficial_flips", "neutral_flips",
)  # fmt: skip
# Of regions each of these has a line for every region.
REGION_METRICS = ("nll", "brier", "ece", "ba_ece", "ace", "cece", "dice", "flip_rate")
HELD_OUT = "held out"
FITTED_ON = "fitted on"
ALL = "all"
TITLES = {
    HELD_OUT: "held-out cases",
    FITTED_ON: "cases that the calibrator was fitted or chosen on (these numbers are too favourable)",
    ALL: "all cases",
}


@typed
def evaluate(
    cases: Any,
    calibrator: Map | Fitted | None = None,
    metrics: Sequence[str] | Mapping[str, Metric] | None = None,
    seed: int = 0,
    replicates: int = REPLICATES,
    level: float = LEVEL,
    bands: BandCache | None = None,
    progress: Callable[[str], None] | None = None,
    workers: Workers = 1,
    failed: Callable[[CaseError], None] | None = None,
    *,
    labels: Any = None,
    device: str | torch.device | None = None,
    convention: str = "paper",
    **declared: Any,
) -> Evaluation:
    """Measure cases before and, with a calibrator, after calibration.

    Args:
        cases: the cases, with labels; or arrays, tensors or a loader, as :func:`segcal.cases.as_cases` takes them.
        calibrator: a calibrator, the result of fit or load, or any function of logits ``(1, classes, *space)`` and
            a context that returns log-probabilities of that shape. Cases without groups get those of the fit
            (:func:`in_groups_of`).
        metrics: names from :data:`segcal.METRICS`, or metrics by names of your own; the usual ones if None.
        seed: seed of the bootstrap.
        replicates: number of bootstrap replicates (2,000).
        level: level of the intervals (0.95).
        bands: keeps the boundary bands of label maps between calls on the same cases.
        progress: called with the id of each case when it is done.
        workers: how many processes measure cases at a time, or an engine of :mod:`segcal.scale`; the result is the same
            to the last bit.
        failed: takes the error of a case that is not usable, which is then left out; without it the error is raised.
        labels: labels of the arrays in `cases`.
        device: where the calibrator computes, slab by slab; by default where it is. Cases are counted in memory.
        convention: the convention of calibration errors: "paper" (ECE of 50 bins, mean over cases), or "field" (15
            bins, all voxels pooled), for comparison with other papers and libraries.
        declared: other declarations of the arrays, such as `kind` and `ignore`.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> result = evaluate(rng.normal(size=(4, 3, 8, 7)), labels=rng.integers(3, size=(4, 8, 7)), metrics=["nll", "ece"])
    >>> result.before["nll"].cases, result.after
    (4, None)
    """
    fitted, calibrator = calibrator if isinstance(calibrator, Fitted) else None, _as_map(calibrator, device)
    cases = as_cases(cases, labels, **declared)
    cases = as_seen(cases if fitted is None else in_groups_of(fitted, cases), calibrator)
    chosen = _choose(metrics, calibrator is not None, DEFAULT_METRICS if cases.regions is None else REGION_METRICS)
    chosen = with_convention(chosen, convention)
    if len(cases) == 0:
        raise InputError("cases is empty, but at least one case is needed. Check the folder or the split.")
    chosen = rater_metrics(chosen, cases.raters)
    counter = Counter(chosen, bands, cases.regions)
    if cases.regions is not None:
        chosen = region_metrics(chosen, cases.regions)
        warn(suspect_kind(cases))
    measure = partial(_measure, counter, calibrator)
    stages = {name: Stage(chosen) for name in ("before", "after")[: 1 if calibrator is None else 2]}
    rows: list[Row] = []
    kind_warnings: dict[str, str] = {}
    failures = Failures(failed)
    for case_id, (found, group, kind_warning) in map_cases(cases, measure, workers, failures.take):
        kind_warnings[case_id] = kind_warning
        for (name, stage), tables in zip(stages.items(), found, strict=True):
            size = {"voxels": tables.voxels, "ignored": tables.confusion.ignored}
            rows.append({"case": case_id, "stage": name, "group": group, **size, **stage.add(case_id, tables)})
        if progress is not None:
            progress(case_id)
    if not rows:
        raise failures.refuse_all(len(cases))
    warn(wrong_kinds(kind_warnings))
    groups = {row["case"]: row["group"] or f"\0{row['case']}" for row in rows}
    draws = Draws([[groups[case_id] for case_id in sorted(groups)]], replicates, seed)
    estimates, changes = summarise(list(stages.values()), draws, level)
    return Evaluation(
        rows=rows,
        before=estimates[0],
        after=None if calibrator is None else estimates[1],
        change=None if calibrator is None else changes,
        metrics=chosen,
        level=level,
        parts={name: stage.parts for name, stage in stages.items()},
        calibrator=calibrator_digest(calibrator)[:16] if isinstance(calibrator, Calibrator) else None,
        fitted_on=0 if fitted is None else len(_seen(cases, fitted) & {row["case"] for row in rows}),
        raters=_raters(cases, fitted),
    )


def _raters(cases: Cases, fitted: Fitted | None) -> str:
    """Return whose labels these are, and whose the calibrator was fitted to, where one of them are several raters'."""
    said = [] if cases.raters is None else [f"labels of {cases.raters}: every vote counts once"]
    if fitted is not None and str(fitted.raters) != str(cases.raters):
        said.append(f"the calibrator was fitted to labels of {fitted.raters or 'one rater'}")
    return "; ".join(said)


def _seen(cases: Cases, fitted: Fitted) -> set[str]:
    """Return the cases that had a part in a fit, by name; cases that are only numbered from 0 have no names."""
    if not cases.folders() and list(cases.ids) == [str(number) for number in range(len(cases))]:
        return set()
    return {*fitted.calibration_ids, *fitted.validation_ids} & {*cases.ids}


def _choose(
    metrics: Sequence[str] | Mapping[str, Metric] | None, compared: bool, usual: Sequence[str]
) -> dict[str, Metric]:
    if isinstance(metrics, Mapping):
        return dict(metrics)
    chosen = find_metrics(tuple(usual if metrics is None else metrics))
    if metrics is None and not compared:
        return {name: metric for name, metric in chosen.items() if "reference" not in metric.needs}
    return chosen


def _as_map(calibrator: Map | Fitted | None, device: str | torch.device | None) -> Map | None:
    """Return what maps logits, on its device."""
    calibrator = calibrator.calibrator if isinstance(calibrator, Fitted) else calibrator
    if device is not None and isinstance(calibrator, Calibrator):
        calibrator.to(check_device(device))
    return calibrator


def _measure(counter: Counter, calibrator: Map | None, case: Case) -> tuple[list[CaseTables], str | None, str]:
    return counter.count(case, calibrator), case.group, case.kind_warning


def evaluate_by_part(
    cases: Cases, fitted: Fitted | None = None, failed: Callable[[CaseError], None] | None = None, **options: Any
) -> dict[str, Evaluation]:
    """Measure held-out cases, and apart from them those that the calibrator was fitted or chosen on.

    Args:
        cases: the cases, with labels.
        fitted: the calibrator and the cases it has seen; None to measure all as they are.
        failed: takes the error of a case that is not usable; a part of which all cases fail is left out.
        options: those of :func:`segcal.evaluate`.
    """
    parts, calibrator = divide_by_part(cases, fitted), None if fitted is None else fitted.calibrator
    results: dict[str, Evaluation] = {}
    failures: list[CaseError] = []

    def keep(error: CaseError) -> None:
        assert failed is not None
        failures.append(error)
        failed(error)

    for name, part in parts.items():
        before = len(failures)
        try:
            found = evaluate(part, calibrator, failed=None if failed is None else keep, **options)
            results[name] = replace(found, raters=_raters(part, fitted))
        except InputError:
            if len(failures) - before < len(part):
                raise
    if not results:
        raise InputError(f"all {len(cases)} cases failed, but at least one is needed. First: {failures[0]}")
    relatives = related(parts)
    if HELD_OUT not in results and FITTED_ON in results:
        warn([Suspicion("no case was held out; what the calibrator is worth shows on cases that it has not seen")])
    if relatives:
        warn([Suspicion(f"{relatives} held-out cases belong to groups of which other cases were fitted on")])
    return results


def divide_by_part(cases: Cases, fitted: Fitted | None) -> dict[str, Cases]:
    """Return the cases by their use in a fit, held-out ones first; sets without cases are left out."""
    if fitted is None:
        return {ALL: cases}
    had_part = {*fitted.calibration_ids, *fitted.validation_ids}
    parts = {
        HELD_OUT: [case_id for case_id in cases.ids if case_id not in had_part],
        FITTED_ON: [case_id for case_id in cases.ids if case_id in had_part],
    }
    return {name: cases.subset(ids) for name, ids in parts.items() if ids}


def related(parts: Mapping[str, Cases]) -> int:
    """Return how many held-out cases belong to a group of which other cases were fitted on."""
    if set(parts) != {HELD_OUT, FITTED_ON}:
        return 0
    seen = {parts[FITTED_ON].groups.get(case_id) for case_id in parts[FITTED_ON].ids} - {None}
    return sum(parts[HELD_OUT].groups.get(case_id) in seen for case_id in parts[HELD_OUT].ids)


def in_groups_of(fitted: Fitted, cases: Opened) -> Opened:
    """Return cases in groups by the pattern that a fit declared; as they are where they have groups, or it had none.

    A case whose name the pattern does not match stays alone. A table of groups does not name later cases: a warning
    says that they have none, as it does of a pattern without a match.
    """
    if cases.groups or fitted.grouping is None:
        return cases
    groups = {name: found[1] for name in cases.ids if (found := re.search(fitted.grouping or "$.", name)) and found[1]}
    if not groups:
        how = f"by {fitted.grouping!r}, which matches no case here" if fitted.grouping else "in a table"
        warn([Suspicion(f"the fit declared groups {how}. Without groups= every case here counts as independent")])
        return cases
    cases = copy.copy(cases)
    cases.groups, cases.grouping = {name: clean(group) for name, group in groups.items()}, fitted.grouping
    return cases


def check_match(fitted: Fitted, cases: Cases, ignore_pooling: bool = False) -> None:
    """Refuse cases that are not of the model the calibrator was fitted for."""
    if not isinstance(fitted, Fitted):
        raise InputError(
            f"fitted is {type(fitted).__name__}, but what fit, choose or load returned is needed: it knows its pooling "
            "and its cases. Pass that, not its .calibrator."
        )
    calibrator = fitted.calibrator
    check_regions(calibrator, cases)
    if calibrator.num_classes != cases.num_classes:
        raise InputError(
            f"the calibrator has {calibrator.num_classes} classes, but the predictions have {cases.num_classes}. "
            "Use the calibrator that was fitted for this model."
        )
    if not ignore_pooling and None not in (fitted.pooling, cases.pooling) and fitted.pooling != cases.pooling:
        raise InputError(
            f"the predictions are pooled by {cases.pooling!r}, but the calibrator was fitted for {fitted.pooling!r}. "
            "Another pooling has other confidences: fit again on predictions like these."
        )
    for folder in [member.folder for member in cases.members] if isinstance(cases, FileCases) else []:
        if read_marker(folder) is not None:
            raise InputError(
                f"{folder} holds predictions that are calibrated already, but the calibrator is for those that were "
                "not. Use the folder that they were made from."
            )
    cases.require_offset(calibrator.name, calibrator.translation_invariant)
    warn(other_origin(fitted.origin, cases.origin))


def check_regions(calibrator: object, cases: Cases) -> None:
    """Refuse a calibrator of regions for classes, of classes for regions, and of other regions."""
    own = calibrator.regions if isinstance(calibrator, Calibrator) else None
    if own == cases.regions:
        return
    words = ["classes" if each is None else f"the regions {each}" for each in (own, cases.regions)]
    declared = f"Declare --regions {own} if these are its outputs, or use" if cases.regions is None else "Use"
    raise InputError(
        f"the calibrator is for {words[0]}, but the predictions have {words[1]}. "
        f"{declared} the calibrator that was fitted for this model."
    )
