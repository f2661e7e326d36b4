"""Measure the cases of a collection before and after calibration.

Cases are read one at a time; what is kept of each is a row of numbers and, for metrics that pool voxels over cases, one
small table. Means and intervals do not depend on the order of the cases: they are taken in the order of their ids.

Before: the softmax of the case's logits. After: the calibrator's scores, normalised the same way. The prediction after
calibration stays the one before wherever no other class is strictly above it in the scores.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from segcal.cases.base import Case, CaseError, Cases
from segcal.cases.parallel import map_cases
from segcal.cases.suspicion import like_probabilities, warn
from segcal.errors import InputError
from segcal.evaluation.counting import Counter, Map
from segcal.evaluation.result import Evaluation
from segcal.evaluation.stage import Stage, summarise
from segcal.metrics import Metric, find_metrics
from segcal.statistics import BandCache, CaseTables
from segcal.summary import LEVEL, REPLICATES, Draws

DEFAULT_METRICS = (
    "nll", "brier", "ece", "ba_ece", "ace", "cece", "dice", "miou", "accuracy", "aurc",
    "flip_rate", "harmful_flips", "beneficial_flips", "neutral_flips",
)  # fmt: skip


def evaluate(
    cases: Cases,
    calibrator: Map | None = None,
    metrics: Sequence[str] | Mapping[str, Metric] | None = None,
    seed: int = 0,
    replicates: int = REPLICATES,
    level: float = LEVEL,
    bands: BandCache | None = None,
    progress: Callable[[str], None] | None = None,
    workers: int = 1,
    failed: Callable[[CaseError], None] | None = None,
) -> Evaluation:
    """Measure cases before and, with a calibrator, after calibration.

    Args:
        cases: the cases, with labels.
        calibrator: a calibrator; or any function of logits ``(1, classes, *space)`` and a context that
            returns log-probabilities of that shape.
        metrics: names from :data:`segcal.METRICS`, or metrics by names of your own; the usual ones if None.
        seed: seed of the bootstrap.
        replicates: how many replicates the bootstrap has.
        level: level of the intervals.
        bands: keeps the boundary bands of label maps between calls on the same cases.
        progress: called with the id of each case when it is done.
        workers: how many processes measure cases at a time; the result is the same to the last bit.
        failed: takes the error of a case that is not usable, which is then left out; without it the error is raised.

    >>> import numpy as np
    >>> from segcal.cases import ArrayCases
    >>> rng = np.random.default_rng(0)
    >>> cases = ArrayCases([rng.normal(size=(3, 8, 7)) for _ in range(4)], [rng.integers(3, size=(8, 7))] * 4)
    >>> result = evaluate(cases, metrics=["nll", "ece"])
    >>> result.before["nll"].cases, result.after
    (4, None)
    """
    if calibrator is not None and not callable(calibrator):
        raise InputError(
            f"calibrator is {type(calibrator).__name__}, but a calibrator or a function is needed. Of what fit or load "
            "returned, pass .calibrator."
        )
    chosen = _choose(metrics, calibrator is not None)
    if len(cases) == 0:
        raise InputError("cases is empty, but at least one case is needed. Check the folder or the split.")
    counter = Counter(chosen, bands)
    stages = {"before": Stage(chosen)} | ({} if calibrator is None else {"after": Stage(chosen)})
    rows, measured = [], 0
    doubted: list[str] = []
    for case_id, (found, group, doubt) in map_cases(cases, partial(_measure, counter, calibrator), workers, failed):
        doubted += [case_id] if doubt else []
        for (name, stage), tables in zip(stages.items(), found, strict=True):
            rows.append(_row(case_id, group, name, tables, stage.add(case_id, tables)))
        measured += 1
        if progress is not None:
            progress(case_id)
    if measured == 0:
        raise InputError(f"all {len(cases)} cases failed, but at least one is needed. Check their files.")
    warn(like_probabilities(doubted))
    estimates, changes = summarise(list(stages.values()), Draws([measured], replicates, seed), level)
    return Evaluation(
        rows=rows,
        before=estimates[0],
        after=None if calibrator is None else estimates[1],
        change=None if calibrator is None else changes,
        metrics=chosen,
        level=level,
        parts={name: stage.parts for name, stage in stages.items()},
    )


def _choose(metrics: Sequence[str] | Mapping[str, Metric] | None, compared: bool) -> dict[str, Metric]:
    if isinstance(metrics, Mapping):
        return dict(metrics)
    if isinstance(metrics, str):
        raise InputError(f"metrics is {metrics!r}, but a list of names is needed. Pass metrics=[{metrics!r}].")
    chosen = find_metrics(tuple(DEFAULT_METRICS if metrics is None else metrics))
    if metrics is None and not compared:
        return {name: metric for name, metric in chosen.items() if "reference" not in metric.needs}
    return chosen


def _measure(counter: Counter, calibrator: Map | None, case: Case) -> tuple[list[CaseTables], str | None, bool]:
    return counter.count(case, calibrator), case.group, case.like_probs


def _row(
    case_id: str, group: str | None, stage: str, tables: CaseTables, numbers: dict[str, float | None]
) -> dict[str, Any]:
    voxels, ignored = tables.likelihood.voxels, tables.confusion.ignored
    return {"case": case_id, "stage": stage, "group": group, "voxels": voxels, "ignored": ignored, **numbers}
