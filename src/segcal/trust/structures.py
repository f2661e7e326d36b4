"""How far each structure of new cases can be trusted: estimates, intervals, and what a person should look at."""

import os
from collections.abc import Callable, Mapping
from typing import Any

import torch

from segcal.arguments import typed
from segcal.calibrators.per_region import PerRegion
from segcal.cases import as_cases
from segcal.cases.base import CaseError, Cases
from segcal.cases.parallel import Failures, Workers, map_ids
from segcal.errors import InputError
from segcal.evaluation.evaluate import check_match
from segcal.fitting.artifact import to_fitted
from segcal.fitting.certificate import Fitted
from segcal.fitting.fit import check_device
from segcal.fitting.reference import HELD_OUT, OUT_OF_FOLD, VALIDATION, Reference, ReferenceCase, calibrator_digest
from segcal.trust.biomarkers import Derived, derive, parse_biomarker
from segcal.trust.judge import Judge
from segcal.trust.learn import Summer
from segcal.trust.result import BiomarkerRow, Trust
from segcal.trust.sums import reference_case
from segcal.trust.table import SumTable

LEVEL, TAU = 0.9, 0.7
PROMISES = {
    HELD_OUT: "On average over cases like the reference, {level:g} % of the intervals hold what they bound.",
    VALIDATION: "On average over cases like the reference, about {level:g} % of the intervals hold what they bound; "
    "the calibrator was compared with others on the reference.",
    OUT_OF_FOLD: "On average over cases like the reference, about {level:g} % of the intervals hold what they bound "
    "(proved: {half:g} %); the calibrator was fitted to the reference, and judged by fits to other cases.",
}


@typed
def trust(
    fitted: Fitted | str | os.PathLike[str],
    cases: Any,
    level: float = LEVEL,
    tau: float = TAU,
    *,
    link: str | None = None,
    biomarkers: Mapping[str, str] | None = None,
    background: bool = True,
    device: str | torch.device | None = None,
    workers: Workers = 1,
    ignore_pooling: bool = False,
    failed: Callable[[CaseError], None] | None = None,
    progress: Callable[[str], None] | None = None,
    **declared: Any,
) -> Trust:
    """Say how far each structure of new cases can be trusted; labels are not needed.

    Args:
        fitted: what :func:`segcal.learn_trust` returned, or the folder of a calibrator that ``segcal fit`` wrote.
        cases: new cases, or arrays as :func:`segcal.cases.as_cases` takes them.
        level: of all intervals.
        tau: the Dice below which a mask is bad.
        link: a regular expression with two groups, subject and phase, on the ids of cases.
        biomarkers: expressions of volumes by name (:mod:`segcal.trust.biomarkers`).
        background: whether class 0 is background, and no structure.
        device: where to calibrate; the CPU if not given.
        workers: how many processes work on cases.
        ignore_pooling: go on although the calibrator was fitted for another pooling.
        failed: takes the error of a case that is not usable, which is then left out; without it the error is raised.
        progress: called with the id of each case when it is done.
        declared: what is known of arrays, such as `kind`.

    >>> import numpy as np
    >>> import segcal
    >>> rng = np.random.default_rng(0)
    >>> logits = 3 * rng.normal(size=(24, 2, 9, 7))
    >>> labels = (logits + rng.gumbel(size=logits.shape)).argmax(1)
    >>> fitted = segcal.learn_trust(segcal.fit("ts", logits[:20], labels[:20]), logits[:20], labels[:20])
    >>> [row["case"] for row in trust(fitted, logits[20:]).rows]
    ['0', '1', '2', '3']
    """
    known = to_fitted(fitted)
    reference = known_reference(known)
    opened = as_cases(cases, **declared)
    check_match(known, opened, ignore_pooling)
    judge = Judge.of(known, reference, level, tau, background)
    made = [parse_biomarker(name, text, judge.titles) for name, text in (biomarkers or {}).items()]
    sums, units = sum_cases(known, opened, device, workers, failed, progress)
    table = SumTable.of_kept(sums, opened.num_classes)
    derived = derive(made, link, judge.reference, table, level) if made else []
    words = PROMISES[reference.source].format(level=100 * level, half=100 * max(0.0, 2 * level - 1))
    return Trust(
        rows=judge.rows(table, units),
        biomarkers=[_biomarker_row(each) for each in derived],
        bounds=judge.bound_rows(),
        level=level,
        tau=tau,
        source=reference.source,
        draws=judge.draws,
        promise=words,
    )


def known_reference(fitted: Fitted) -> Reference:
    """Return the reference of a fitted calibrator, or say how to get one."""
    if not isinstance(fitted, Fitted):
        raise InputError(
            f"fitted is {type(fitted).__name__}, but what fit, choose or load returned is needed. Pass that, not its "
            ".calibrator."
        )
    if isinstance(fitted.calibrator, PerRegion):
        raise InputError(
            "the calibrator is for regions, but trust and monitor are for classes that exclude each other. Look at "
            "segcal evaluate and report on labelled cases of regions."
        )
    if fitted.reference is None:
        raise InputError(
            "the calibrator has no reference cases, but trust compares with labelled ones. Fit again with segcal fit, "
            "or pass labelled cases to segcal.learn_trust."
        )
    if fitted.reference.calibrator != calibrator_digest(fitted.calibrator):
        raise InputError(
            "the reference belongs to another calibrator, but its numbers are those of that one's probabilities. "
            "Pass labelled cases to segcal.learn_trust again."
        )
    return fitted.reference


def sum_cases(
    fitted: Fitted,
    cases: Cases,
    device: str | torch.device | None,
    workers: Workers,
    failed: Callable[[CaseError], None] | None,
    progress: Callable[[str], None] | None,
) -> tuple[list[ReferenceCase], list[str]]:
    """Return what is kept of all cases that can be used, and their units."""
    if not len(cases):
        raise InputError("cases is empty, but at least one case is needed. Check the folder.")
    own = cases.with_disagreement()
    calibrator = fitted.calibrator.to(check_device(device))
    sums, units, failures = [], [], Failures(failed)
    for case_id, found in map_ids(own.ids, Summer(calibrator, own), workers, failures.take):
        sums.append(reference_case(found))
        units.append(found.unit)
        if progress is not None:
            progress(case_id)
    if not sums:
        raise failures.refuse_all(len(cases))
    return sums, units


def _biomarker_row(one: Derived) -> BiomarkerRow:
    value, low, high = (None, None, None) if one.span is None else one.span
    return {
        "subject": one.subject,
        "biomarker": one.name,
        "value": value,
        "low": low,
        "high": high,
        "mask_value": one.mask_value,
        "reason": one.why,
    }
