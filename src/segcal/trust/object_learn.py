"""What a calibrator learns of objects of labelled cases, so that :func:`segcal.objects` can judge those of new ones.

Which labelled cases may judge a fit, and by which calibrator, is decided as for :func:`segcal.learn_trust`; the fits to
folds that it kept are used again.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from segcal.arguments import typed
from segcal.calibrators.base import Calibrator
from segcal.calibrators.per_region import PerRegion
from segcal.cases import as_cases
from segcal.cases.base import CaseError, Cases
from segcal.cases.files import FileCases
from segcal.cases.geometry import Geometry, nifti_geometry
from segcal.cases.parallel import Failures, Workers, map_ids
from segcal.cases.write import nifti_of
from segcal.checks import check_choice
from segcal.errors import InputError
from segcal.evaluation.evaluate import check_match
from segcal.fitting.certificate import Fitted
from segcal.fitting.fit import check_device
from segcal.fitting.object_reference import VERSION, ObjectCase, ObjectReference, ObjectRule
from segcal.fitting.reference import HELD_OUT, OUT_OF_FOLD, calibrator_digest, fold_calibrators, written_numbers
from segcal.names import class_titles
from segcal.trust.components import CaseObjects, find_objects
from segcal.trust.learn import fold_fits, judges_of
from segcal.trust.sums import Floats

# Objects that are remembered; each takes about 60 bytes of the artefact.
MOST_OBJECTS = 200_000


class Finder:
    """Finds the objects of one case after the other; picklable, for several processes."""

    def __init__(self, calibrator: Calibrator, cases: Cases, structures: Sequence[int], rule: ObjectRule) -> None:
        self._calibrator, self._cases, self._structures, self._rule = calibrator, cases, structures, rule

    def __call__(self, case_id: str) -> CaseObjects:
        """Read a case and find its objects."""
        case = self._cases.checked(case_id)
        found = find_objects(self._calibrator, case, self._structures, self._rule)
        return replace(found, affine=_affine(self._cases, case_id, case.logits.ndim - 1))


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
    progress: Callable[[str], None] | None = None,
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
    known = as_cases(cases, labels, **declared)
    check_match(fitted, known)
    rule, own = _rule(measure, at, smallest), numbers_of(fitted, structures)
    if not len(known):
        raise InputError("cases is empty, but labelled cases are needed to learn from. Check the folder or the split.")
    chosen, source = (known, HELD_OUT) if held_out else judges_of(fitted, known)
    target, failures, kept, total = check_device(device), Failures(failed), [], 0
    for calibrator, part in _parts(fitted, chosen, source, target):
        finder = Finder(calibrator, part.with_disagreement(), own, rule)
        for case_id, found in map_ids(part.ids, finder, workers, failures.take):
            total += len(found.table)
            if np.isnan(found.structures).any() or total > MOST_OBJECTS:
                unlabelled = "it has no labels, but objects are learned from them. Open the cases with labels"
                many = f"objects are {total} with its own, but {MOST_OBJECTS} can be kept. Pass a larger `smallest`"
                raise CaseError(case_id, f"{many if total > MOST_OBJECTS else unlabelled}, or leave cases out.")
            kept.append(ObjectCase(found.case, found.group, *map(written_numbers, (found.table, found.structures))))
            if progress is not None:
                progress(case_id)
    if not kept:
        raise failures.refuse_all(len(chosen))
    digest, ordered = calibrator_digest(fitted.calibrator), tuple(sorted(kept, key=lambda each: each.id))
    return replace(fitted, objects=ObjectReference(VERSION, source, digest, own, rule, ordered))


def _rule(measure: str, at: float, smallest: int) -> ObjectRule:
    check_choice(measure, "measure", ("iou", "overlap"))
    if not 0 < at <= 1 or smallest < 1:
        raise InputError(
            f"at is {at:g} and smallest is {smallest}, but a share above 0 and at least 1 voxel are needed. Use 0.1 "
            "and 1 if in doubt."
        )
    return ObjectRule("iou" if measure == "iou" else "overlap", at, smallest)


def numbers_of(fitted: Fitted, names: Sequence[str] | None) -> tuple[int, ...]:
    """Return the numbers of structures by name; without names, of all but the background."""
    calibrator = fitted.calibrator
    titles = class_titles(fitted.class_names, calibrator.num_classes)
    if names is None:
        return tuple(range(0 if isinstance(calibrator, PerRegion) else 1, len(titles)))
    for name in names:
        check_choice(name, "structure", titles)
    return tuple(sorted({titles.index(name) for name in names}))


def _parts(fitted: Fitted, cases: Cases, source: str, device: torch.device) -> Iterable[tuple[Calibrator, Cases]]:
    """Return parts of the cases, each with a calibrator that has not seen them, or that they were compared by."""
    reference = fitted.reference
    if source != OUT_OF_FOLD:
        return [(fitted.calibrator.to(device), cases)]
    if reference is None or not reference.folds or not {case.id for case in reference.cases} <= {*cases.ids}:
        return fold_fits(fitted, cases, device)
    fits = fold_calibrators(reference, fitted.calibrator)
    own = [[case.id for case in reference.cases if case.fold == fold] for fold in range(len(fits))]
    return [(each.to(device), cases.subset(ids)) for each, ids in zip(fits, own, strict=True)]


def _affine(cases: Cases, case_id: str, axes: int) -> Floats | None:
    """Return the matrix from an index of the array to millimetres, ``(3, axes + 1)``; None where no header has it."""
    if not isinstance(cases, FileCases) or axes > 3:
        return None
    found: list[Geometry] = cases.members[0].geometry(case_id)
    like = nifti_of(cases, case_id)
    if not found and like is not None:
        found = nifti_geometry(like, cases.members[0].facts().label_axes)
    if not found:
        return None
    order = list(range(axes))[:: -1 if found[0].reverses else 1]
    return np.asarray(found[0].affines[0][:3][:, [*order, 3]], np.float64)
