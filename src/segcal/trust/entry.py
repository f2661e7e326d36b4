"""The way into every function on cases: the calibrator with what it remembers, the cases that fit it, one by one."""

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from segcal.calibrators.per_region import PerRegion
from segcal.cases import as_cases
from segcal.cases.base import CaseError, Cases
from segcal.cases.parallel import Failures, Workers, map_ids
from segcal.errors import InputError
from segcal.evaluation.evaluate import check_match
from segcal.fitting.artifact import to_fitted
from segcal.fitting.certificate import Fitted
from segcal.fitting.object_reference import ObjectReference
from segcal.fitting.reference import Reference, calibrator_digest

Known = TypeVar("Known")
Result = TypeVar("Result")
Failed = Callable[[CaseError], None] | None
Progress = Callable[[str], object] | None


def enter(
    fitted: Fitted | str | os.PathLike[str],
    remembered: Callable[[Fitted], Known],
    cases: Any,
    declared: dict[str, Any],
    ignore_pooling: bool = False,
) -> tuple[Fitted, Known, Cases]:
    """Return the calibrator, what it remembers and new cases that are of the same model."""
    known = to_fitted(fitted)
    found = remembered(known)
    opened = as_cases(cases, **declared)
    check_match(known, opened, ignore_pooling)
    return known, found, opened


def walk(
    ids: Sequence[str],
    function: Callable[[str], Result],
    workers: Workers,
    failed: Failed,
    progress: Progress,
    needed: bool = False,
) -> Iterator[tuple[str, Result]]:
    """Yield the id and the result of every case that can be used; `needed`: refuse if there is none."""
    if needed and not ids:
        raise InputError("cases is empty, but at least one case is needed. Check the folder.")
    failures, count = Failures(failed), 0
    for case_id, result in map_ids(ids, function, workers, failures.take):
        yield case_id, result
        count += 1
        if progress is not None:
            progress(case_id)
    if needed and not count:
        raise failures.refuse_all(len(ids))


def known_reference(fitted: Fitted, regions: bool = False) -> Reference:
    """Return the reference of a fitted calibrator, or say how to get one; `regions`: also of one for regions."""
    if isinstance(fitted.calibrator, PerRegion) and not regions:
        raise InputError(
            "the calibrator is for regions, but trust and monitor are for classes that exclude each other. Look at "
            "segcal evaluate and report on labelled cases of regions."
        )
    if fitted.reference is None:
        raise InputError(
            "the calibrator has no reference cases, but what is promised is learned on labelled ones. Fit again with "
            "segcal fit, or pass labelled cases to segcal.learn_trust."
        )
    if fitted.reference.calibrator != calibrator_digest(fitted.calibrator):
        raise InputError(
            "the reference belongs to another calibrator, but its numbers are those of that one's probabilities. "
            "Pass labelled cases to segcal.learn_trust again."
        )
    return fitted.reference


def known_objects(fitted: Fitted) -> ObjectReference:
    """Return what a fitted calibrator remembers of objects, or say how to get it."""
    if fitted.objects is None:
        raise InputError(
            "the calibrator remembers no objects, but new ones are compared with labelled ones. Fit again with segcal "
            "fit --objects, or pass labelled cases to segcal.learn_objects."
        )
    if fitted.objects.calibrator != calibrator_digest(fitted.calibrator):
        raise InputError(
            "the objects belong to another calibrator, but their numbers are those of that one's probabilities. Pass "
            "labelled cases to segcal.learn_objects again."
        )
    return fitted.objects
