"""Trust in each structure of new cases: estimates, intervals, and the cases that a person should look at."""

import os
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch

from segcal.arguments import typed
from segcal.cases.base import CaseError, Cases
from segcal.cases.parallel import Workers
from segcal.errors import InputError
from segcal.fitting.certificate import Fitted
from segcal.fitting.fit import check_device
from segcal.fitting.reference import (
    HELD_OUT,
    ITSELF,
    OUT_OF_FOLD,
    VALIDATION,
    Reference,
    ReferenceCase,
    fold_calibrators,
)
from segcal.trust.alarms import alarms_of
from segcal.trust.biomarkers import derive, parse_biomarker
from segcal.trust.conformal import proved_level
from segcal.trust.entry import Failed, Progress, enter, known_reference, walk
from segcal.trust.estimates import TAU, SumTable
from segcal.trust.judge import Judge
from segcal.trust.learn import Summer
from segcal.trust.result import Trust
from segcal.trust.sums import one_unit, reference_case

LEVEL = 0.9
PROMISES = {
    HELD_OUT: "On average over {draws} like the reference, at least {level:g} % of the intervals contain the true "
    "value.",
    VALIDATION: "On average over {draws} like the reference, about {level:g} % of the intervals contain the true "
    "value. Nothing is proved, also not for inner and outer masks: the calibrator was compared with others on the "
    "reference.",
    OUT_OF_FOLD: "On average over {draws} like the reference, about {level:g} % of the intervals contain the true "
    "value ({proved}). Each reference case was judged by a fit without it. For inner and outer masks nothing is "
    "proved.",
}
RATED = "The reference was labelled by up to {most} raters: intervals are for what a rater marks, not their majority."
CASES, GROUPS = "cases", "groups of equal weight"


@typed
def trust(
    fitted: Fitted | str | os.PathLike[str],
    cases: Any,
    level: float = LEVEL,
    tau: float | Mapping[str, float] = TAU,
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
        tau: the Dice below which a mask is bad; by structure, those that are not named have 0.7.
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
    known, reference, opened = enter(fitted, known_reference, cases, declared, ignore_pooling)
    judge = Judge.of(known, reference, level, tau, background)
    made = [parse_biomarker(name, text, judge.titles) for name, text in (biomarkers or {}).items()]
    kept, units = sum_cases(known, reference, opened, device, workers, failed, progress)
    unit = one_unit(units)
    tables = [SumTable.of_kept(column, opened.num_classes).in_unit(unit) for column in zip(*kept, strict=True)]
    if made and unit != one_unit([reference.unit]):
        raise InputError(
            f"volumes of these cases are in {unit}, but the reference has them in {one_unit([reference.unit])}, and a "
            "biomarker needs one unit. Give all cases their voxel size, or none."
        )
    return Trust(
        rows=judge.rows(tables, unit),
        biomarkers=derive(made, link, judge.reference, tables, level, judge.folds) if made else [],
        bounds=judge.bound_rows(),
        level=level,
        tau=tau if not isinstance(tau, Mapping) else {judge.titles[n]: judge.tau[n] for n in judge.structures},
        source=reference.source,
        draws=judge.draws,
        promise=promise_of(reference, judge),
        alarms=alarms_of(known, reference, tables[ITSELF]),
    )


def promise_of(reference: Reference, judge: Judge) -> str:
    """Return in words what the intervals promise, and no more than that."""
    if reference.source != OUT_OF_FOLD:
        proved = ""
    elif reference.chosen or not reference.folds:
        chosen = "the calibrator or its strengths were chosen on these cases"
        missing = chosen if reference.chosen else "an older segcal kept no folds"
        proved = f"nothing is proved: {missing}"
    else:
        size = max(Counter({each.group: each.fold for each in reference.cases}.values()).values())
        proved = f"proved: {100 * proved_level(judge.level, judge.fewest, size):.3g} %"
    words = PROMISES[reference.source]
    rows = Counter(each.id for each in reference.cases)  # one of each rater
    draws, most = CASES if judge.draws == len(rows) else GROUPS, max(rows.values())
    said = words.format(level=100 * judge.level, draws=draws, proved=proved)
    return said if most == 1 else f"{said} {RATED.format(most=most)}"


def sum_cases(
    fitted: Fitted,
    reference: Reference,
    cases: Cases,
    device: str | torch.device | None,
    workers: Workers,
    failed: Failed,
    progress: Progress,
) -> tuple[list[list[ReferenceCase]], set[str]]:
    """Return what is kept of all cases that can be used, and their units.

    What is kept of a case is by each calibrator that judged a fold of the reference, and by the calibrator itself last.
    """
    target = check_device(device)
    every = [each.to(target) for each in (*fold_calibrators(reference, fitted.calibrator), fitted.calibrator)]
    kept, units = [], set()
    summer = Summer(cases.with_disagreement(), every)
    for _, sums in walk(cases.ids, summer, workers, failed, progress, needed=True):
        kept.append([reference_case(each) for each in sums])
        units.add(sums[ITSELF].unit)
    return kept, units
