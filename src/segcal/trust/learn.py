"""Learning from labelled cases, so that :func:`segcal.trust` and :func:`segcal.objects` can judge others.

Only numbers that the calibrator had no part in making say how far it can be trusted. Cases that it has not seen are
taken as they are: every promise is then exact. Cases that it was compared on are held out for its parameters, not for
the choice among candidates, and nothing is proved. Cases of the fit are measured by fits of the same kind to other
groups, fold by fold, and these fits are kept. A new case is measured by each of them too, which is CV+
(:mod:`segcal.trust.conformal`). Intervals then hold about as stated, and are proved at twice the share of exceptions or
a little more. Nothing is proved if the kind or the strengths were chosen on the same cases, or for thresholds of masks
from folds.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from segcal.arguments import typed
from segcal.calibrators import make_calibrator, registry_entry
from segcal.calibrators.base import Calibrator
from segcal.calibrators.per_region import PerRegion
from segcal.cases import as_cases
from segcal.cases.base import CaseError, Cases
from segcal.cases.decision import decision_of
from segcal.cases.files import FileCases
from segcal.cases.geometry import nifti_geometry
from segcal.cases.parallel import Failures, Workers
from segcal.cases.region_view import region_view
from segcal.cases.write import nifti_of
from segcal.checks import check_choice
from segcal.errors import InputError
from segcal.evaluation.evaluate import check_match
from segcal.fitting import object_reference, reference
from segcal.fitting.certificate import Certificate, Fitted
from segcal.fitting.division import equal_folds
from segcal.fitting.fit import check_device, fit_to
from segcal.fitting.object_reference import ObjectCase, ObjectReference, ObjectRule
from segcal.fitting.progress import Report, reporting, silent
from segcal.fitting.reference import (
    HELD_OUT,
    ITSELF,
    OUT_OF_FOLD,
    VALIDATION,
    LossCurves,
    Reference,
    ReferenceCase,
    Source,
    calibrator_digest,
    written_numbers,
)
from segcal.fitting.request import FitData, read_data
from segcal.names import class_titles
from segcal.trust.components import CaseObjects, find_objects
from segcal.trust.conformal import count_draws, mean_over_draws
from segcal.trust.entry import Progress, walk
from segcal.trust.sums import AGREEMENT, THRESHOLDS, CaseSums, Floats, one_unit, reference_case, sum_case, sum_raters

# Objects that are remembered; each takes about 60 bytes of the artefact.
MOST_OBJECTS = 200_000


class Summer:
    """Sums one case after the other by each of some calibrators; the case is read once. Picklable, for processes."""

    def __init__(self, cases: Cases, calibrators: Sequence[Calibrator]) -> None:
        self._cases = cases if cases.kept is not None else cases.keeping()
        self._calibrators = calibrators

    def of_raters(self, case_id: str) -> list[CaseSums]:
        """Read a case and sum it by the first calibrator, once for each rater."""
        return self(case_id, True)

    def __call__(self, case_id: str, raters: bool = False) -> list[CaseSums]:
        """Read and sum a case; what members agree on is the same by every calibrator."""
        case = self._cases.checked(case_id)
        members = self._cases.member_decisions(case_id) if len(self._cases.member_names) > 1 else ()
        first = self._calibrators[0]
        found = sum_raters(first, case, members) if raters else [sum_case(first, case, members)]
        others = [sum_case(each, case) for each in self._calibrators[1:]]
        for each in others:
            each.columns[AGREEMENT] = found[0].columns[AGREEMENT]
        if self._cases.kept is not None:
            self._cases.kept.release(case_id)
        return [*found, *others]


class Finder:
    """Finds the objects of one case after the other; picklable, for several processes."""

    def __init__(self, calibrator: Calibrator, cases: Cases, structures: Sequence[int], rule: ObjectRule) -> None:
        self._calibrator, self._cases, self._structures, self._rule = calibrator, cases, structures, rule

    def __call__(self, case_id: str) -> CaseObjects:
        """Read a case and find its objects."""
        case = self._cases.checked(case_id)
        found = find_objects(self._calibrator, case, self._structures, self._rule)
        return replace(found, affine=_affine(self._cases, case_id, case.logits.ndim - 1))

    def of_raters(self, case_id: str) -> list[CaseObjects]:
        """Read a case and find its objects, once as each rater labelled it."""
        each, how = self._cases.checked(case_id).by_rater(), (self._structures, self._rule)
        return [find_objects(self._calibrator, one, *how) for one in each]


@typed
def learn_trust(
    fitted: Fitted,
    cases: Any,
    labels: Any = None,
    *,
    held_out: bool = False,
    device: str | torch.device | None = None,
    workers: Workers = 1,
    failed: Callable[[CaseError], None] | None = None,
    progress: Progress = None,
    report: Report | None = None,
    **declared: Any,
) -> Fitted:
    """Return the fitted calibrator with what it needs to say how far new cases can be trusted.

    Of cases that had a part in the fit this takes as long as several fits; `report` and `progress` say how far it is.

    Args:
        fitted: what :func:`segcal.fit`, :func:`segcal.choose` or :func:`segcal.load` returned.
        cases: labelled cases. Those that had no part in the fit are used alone, if there are any and no other case of
            their group had one; else those it was compared on; else fits to the other groups measure each in turn, of
            which as many are in every fold, and a few may be in none.
        labels: of arrays.
        held_out: no case had a part in the fit, whatever its name; arrays are named by their numbers, and have those of
            others too.
        device: where to compute; the CPU if not given.
        workers: how many processes read cases.
        failed: takes the error of a case that is not usable, which is then left out; without it the error is raised.
        progress: called with the id of each case when it is done.
        report: takes short texts on how far it is; without it they are shown on a terminal.
        declared: what else is known of arrays, such as `kind`.

    >>> import segcal
    >>> rng = np.random.default_rng(0)
    >>> logits = 3 * rng.normal(size=(12, 2, 9, 7))
    >>> labels = (logits + rng.gumbel(size=logits.shape)).argmax(1)
    >>> fitted = segcal.fit("ts", logits, labels)
    >>> learn_trust(fitted, logits, labels).reference.source
    'out of fold'
    """
    with reporting("learning trust", report) as say:
        return _learned(fitted, as_cases(cases, labels, **declared), held_out, device, workers, failed, progress, say)


def _learned(
    fitted: Fitted,
    cases: Cases,
    held_out: bool,
    device: str | torch.device | None,
    workers: Workers,
    failed: Callable[[CaseError], None] | None,
    progress: Progress,
    report: Report,
) -> Fitted:
    if cases.raters is not None and (cases.regions or cases.raters.form == "shares"):
        cases.require_one_rater("trust of regions or of shares")
    chosen, source = judges_among(fitted, cases, held_out)
    target, classes = check_device(device), fitted.calibrator.num_classes
    own_fits = source == OUT_OF_FOLD
    parts = fold_fits(fitted, chosen, target, report) if own_fits else [(fitted.calibrator.to(target), chosen)]
    # One array that is there from the start: small arrays that are kept, between large ones that are not, would keep
    # the memory of the large ones.
    rows = len(chosen) * (1 if chosen.raters is None else len(chosen.raters.weights))
    losses = np.full((rows, classes, 3, len(THRESHOLDS)), np.nan, np.float32)
    kept: list[ReferenceCase] = []
    units: set[str] = set()
    done = 0
    for number, (calibrator, part) in enumerate(parts):
        fold = number if own_fits else ITSELF
        summer = Summer(part, [calibrator])
        for case_id, each in walk(part.ids, summer.of_raters, workers, failed, progress):
            done += 1
            report(f"trust, {done} of {len(chosen)} cases")
            for sums in each:
                if sums.histograms is None:
                    raise InputError(
                        f"labels of case {case_id!r} is missing, but trust is learned from labelled cases. "
                        "Open the cases with labels, or leave this one out."
                    )
                losses[len(kept)] = losses_of(sums.histograms)
                kept.append(reference_case(sums, fold))
                units.add(sums.unit)
    if not kept:
        raise InputError("all cases failed, but at least one is needed to learn from. Check their files.")
    groups = [each.group for each in kept]
    known = Reference(
        version=reference.VERSION,
        source=source,
        calibrator=calibrator_digest(fitted.calibrator),
        members=max(len(chosen.member_names), 1),
        unit=one_unit(units),
        cases=tuple(sorted(kept, key=lambda each: each.id)),
        curves=tuple(_curves(losses[: len(kept), number], groups) for number in range(classes)),
        folds=tuple(reference.packed(calibrator) for calibrator, _ in parts) if own_fits else (),
        chosen=own_fits and any(bool(one.path) or "chosen" in one.details for one in _certificates(fitted)),
    )
    return replace(fitted, reference=known)


@typed
def learn_objects(
    fitted: Fitted,
    cases: Any,
    labels: Any = None,
    *,
    structures: Sequence[str] | None = None,
    measure: str = "iou",
    at: float = 0.1,
    smallest: int = 1,
    held_out: bool = False,
    device: str | torch.device | None = None,
    workers: Workers = 1,
    failed: Callable[[CaseError], None] | None = None,
    progress: Progress = None,
    **declared: Any,
) -> Fitted:
    """Return the fitted calibrator with what it needs to say which objects of new cases are real.

    Args:
        fitted: what :func:`segcal.fit`, :func:`segcal.choose`, :func:`segcal.learn_trust` or :func:`segcal.load`
            returned.
        cases: labelled cases; which of them are used is decided as by :func:`segcal.learn_trust`.
        labels: of arrays.
        structures: names of classes or regions; all if None, without class 0, which is background.
        measure: "iou", or "overlap": the share of an object that lies in one object of the labels.
        at: an object is real if its best measure is at least this.
        smallest: components of fewer voxels are no objects.
        held_out: no case had a part in the fit, whatever its name.
        device: where to compute; the CPU if not given.
        workers: how many processes read cases.
        failed: takes the error of a case that is not usable, which is then left out; without it the error is raised.
        progress: called with the id of each case when it is done.
        declared: what else is known of arrays, such as `kind`.
    """
    check_choice(measure, "measure", ("iou", "overlap"))
    if not 0 < at <= 1 or smallest < 1:
        raise InputError(
            f"at is {at:g} and smallest is {smallest}, but a share above 0 and at least 1 voxel are needed. Use 0.1 "
            "and 1 if this is not known."
        )
    rule = ObjectRule("iou" if measure == "iou" else "overlap", at, smallest)
    own = numbers_of(fitted, structures)
    cases = as_cases(cases, labels, **declared)
    if cases.raters is not None and cases.raters.form == "shares":
        raise InputError(
            "the cases have shares of raters, but an object is real to each rater or not. Open them with label maps."
        )
    chosen, source = judges_among(fitted, cases, held_out)
    failures, kept, total = Failures(failed), [], 0
    for calibrator, part in _parts(fitted, chosen, source, check_device(device)):
        finder = Finder(calibrator, part, own, rule)
        for case_id, each in walk(part.ids, finder.of_raters, workers, failures.take, progress):
            total += sum(len(found.table) for found in each)
            if np.isnan(each[0].structures).any() or total > MOST_OBJECTS:
                unlabelled = "it has no labels, but objects are learned from them. Open the cases with labels"
                many = f"objects are {total} with its own, but {MOST_OBJECTS} can be kept. Pass a larger `smallest`"
                raise CaseError(case_id, f"{many if total > MOST_OBJECTS else unlabelled}, or leave cases out.")
            rows = ((one.case, one.group, *map(written_numbers, (one.table, one.structures))) for one in each)
            kept += [ObjectCase(*row) for row in rows]
    if not kept:
        raise failures.refuse_all(len(chosen))
    digest, ordered = calibrator_digest(fitted.calibrator), tuple(sorted(kept, key=lambda each: each.id))
    return replace(fitted, objects=ObjectReference(object_reference.VERSION, source, digest, own, rule, ordered))


def losses_of(histograms: Floats) -> Floats:
    """Return the losses ``(classes, 3, thresholds)`` of a case, in the order in which :class:`LossCurves` names them.

    The first two are NaN where the structure is not there.
    """
    own, rank, every = np.cumsum(histograms, -1)
    total = np.where(own[:, -1:] > 0, own[:, -1:], np.nan)
    missed, outranked = own[:, :-1] / total, 1 - rank[:, :-1] / total
    above, right = (table[:, -1:] - table[:, :-1] for table in (every, own))
    wrong = np.divide(above - right, above, out=np.zeros_like(above), where=above > 0)
    return np.stack([missed, outranked, np.maximum.accumulate(wrong[:, ::-1], 1)[:, ::-1]], 1)


def _curves(losses: NDArray[np.float32], groups: list[str]) -> LossCurves:
    """Return the mean losses of one class over groups, from those ``(cases, 3, thresholds)`` of its cases."""
    there = np.flatnonzero(~np.isnan(losses[:, 0, 0]))
    own = [groups[place] for place in there]
    missed, outranked = (written_numbers(mean_over_draws(losses[there, k], own)) if own else "" for k in (0, 1))
    return LossCurves(count_draws(own), missed, outranked, written_numbers(mean_over_draws(losses[:, 2], groups)))


def judges_among(fitted: Fitted, cases: Cases, held_out: bool) -> tuple[Cases, Source]:
    """Return the cases that may judge a fit, and how they stand to it; `held_out`: none had a part in it."""
    check_match(fitted, cases)
    if not len(cases):
        raise InputError("cases is empty, but labelled cases are needed to learn from. Check the folder or the split.")
    cases = cases.with_disagreement()
    if held_out:
        return cases, HELD_OUT
    seen = {*fitted.calibration_ids, *fitted.validation_ids}
    touched = {cases.groups[case_id] for case_id in cases.ids if case_id in seen and case_id in cases.groups}
    unseen = [case_id for case_id in cases.ids if case_id not in seen and cases.groups.get(case_id) not in touched]
    if unseen:
        return cases.subset(unseen), HELD_OUT
    compared = [case_id for case_id in cases.ids if case_id in fitted.validation_ids]
    if compared:
        return cases.subset(compared), VALIDATION
    return cases.subset([case_id for case_id in cases.ids if case_id in seen]), OUT_OF_FOLD


def _certificates(fitted: Fitted) -> list[Certificate]:
    """Return the certificate of a fit; of regions, those of each."""
    own = fitted.certificate.details.get("regions")
    return [fitted.certificate] if own is None else [msgspec.convert(one, Certificate) for one in own.values()]


def fold_fits(
    fitted: Fitted, cases: Cases, device: torch.device, report: Report = silent
) -> list[tuple[Calibrator, Cases]]:
    """Return the parts of the cases, each with a calibrator that was fitted to all others; of regions, one for each."""
    if isinstance(fitted.calibrator, PerRegion):
        whole, fits_of = fitted.calibrator, []
        for number, (inner, found) in enumerate(zip(whole.each.values(), _certificates(fitted), strict=True)):
            one = replace(fitted, calibrator=inner, certificate=found)
            fits_of.append(fold_fits(one, region_view(cases, number), device, report))
        joined = ([each for each, _ in part] for part in zip(*fits_of, strict=True))
        made = [PerRegion(whole.regions, inner).eval().requires_grad_(False) for inner in joined]
        return [(each, cases.subset(part.ids)) for each, (_, part) in zip(made, fits_of[0], strict=True)]
    parts = equal_folds(cases, fitted.config.folds, fitted.config.seed)
    entry = registry_entry(fitted.calibrator)
    if len(parts) < 2 or entry is None:
        what = "are one group" if entry is not None else "were fitted by a calibrator of your own"
        raise InputError(
            f"the {len(cases)} cases had a part in the fit and {what}, but none can then be held out. "
            "Pass labelled cases that the calibrator has not seen."
        )
    found = fitted.certificate
    # The paper's search would take as long again for every fold, to come near the optimum that the exact method finds.
    config = replace(fitted.config, method="exact", verify=False, checkpoint=None)
    config = replace(config, lam=found.lam, mu=found.mu, nu=found.nu)
    fits = []
    data = read_data(cases, None, config, report, contexts=fitted.calibrator.wants)
    for number, part in enumerate(parts, 1):
        learned = data.cases.subset([case_id for case_id in data.cases.ids if case_id not in part])
        source = data.source.subset(learned.ids)
        if not source.used:
            raise InputError(
                f"the labels of {len(learned)} of {len(data.cases)} cases are ignored everywhere, but each part of the "
                "cases is judged by a fit to the others. Pass labelled cases that the calibrator has not seen."
            )
        fresh = make_calibrator(entry[0], cases.num_classes, **entry[1])
        say = partial(_say_part, report, f"trust, fit {number} of {len(parts)}")
        one = fit_to(fresh, FitData(learned, None, source, None), config, device, say)
        fits.append((one.calibrator.to(device), cases.subset([each for each in cases.ids if each in part])))
    return fits


def _say_part(report: Report, what: str, message: str) -> None:
    report(f"{what}: {message}")


def numbers_of(fitted: Fitted, names: Sequence[str] | None) -> tuple[int, ...]:
    """Return the numbers of structures by name; without names, of all but the background."""
    calibrator = fitted.calibrator
    titles = class_titles(fitted.class_names, calibrator.num_classes)
    if names is None:
        return tuple(decision_of(calibrator.regions).structures(len(titles), background=True))
    for name in names:
        check_choice(name, "structure", titles)
    return tuple(sorted({titles.index(name) for name in names}))


def _parts(fitted: Fitted, cases: Cases, source: str, device: torch.device) -> list[tuple[Calibrator, Cases]]:
    """Return parts of the cases, each with a calibrator that has not seen them, or that they were compared by."""
    known = fitted.reference
    if source != OUT_OF_FOLD:
        return [(fitted.calibrator.to(device), cases)]
    if known is None or not known.folds or not {case.id for case in known.cases} <= {*cases.ids}:
        return fold_fits(fitted, cases, device)
    fits = reference.fold_calibrators(known, fitted.calibrator)
    own = [[case.id for case in known.cases if case.fold == fold] for fold in range(len(fits))]
    return [(each.to(device), cases.subset(ids)) for each, ids in zip(fits, own, strict=True)]


def _affine(cases: Cases, case_id: str, axes: int) -> Floats | None:
    """Return the matrix from an index of the array to millimetres, ``(3, axes + 1)``; None where no header has it."""
    if not isinstance(cases, FileCases) or axes > 3:
        return None
    member, like = cases.members[0], nifti_of(cases, case_id)
    found = member.geometry(case_id) or ([] if like is None else nifti_geometry(like, member.facts().label_axes))
    if not found:
        return None
    order = list(range(axes))[:: -1 if found[0].reverses else 1]
    return np.asarray(found[0].affines[0][:3][:, [*order, 3]], np.float64)
