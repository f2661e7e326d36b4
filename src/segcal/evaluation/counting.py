"""The tables that the chosen metrics need, of one case before and after calibration."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

from segcal.calibrators.base import Calibrator
from segcal.calibrators.look_around import tiled_scores
from segcal.cases.base import Case
from segcal.checks import check_forward
from segcal.errors import InputError
from segcal.metrics import Metric
from segcal.numerics import compute_dtype
from segcal.statistics import (
    BandCache,
    CaseTables,
    Counted,
    count_log_probs,
    count_logits,
    find_bands,
    surface_distances,
)
from segcal.statistics.boundary import LabelBands
from segcal.statistics.case import CLASS_BINS
from segcal.types import Context

# Values of one step of a calibrator that sees neighbours.
STEP_VALUES = 1 << 24

# A calibrator, or any function from logits (1, classes, *space) and a context to log-probabilities of that shape.
Map: TypeAlias = Calibrator | Callable[[Tensor, Context], Tensor]


class Counter:
    """Counts cases, making only the tables that are needed.

    Args:
        metrics: the metrics that will be read.
        cache: keeps the bands of label maps between runs, if given.
    """

    def __init__(self, metrics: Mapping[str, Metric], cache: BandCache | None = None) -> None:
        self.needs = {need for metric in metrics.values() for need in metric.needs}
        self.bins = tuple(sorted({metric.bins for metric in metrics.values() if metric.bins})) or (15,)
        self.class_bins = CLASS_BINS if "classwise" in self.needs else 0
        self.cache = cache

    def count(self, case: Case, calibrator: Map | None) -> list[CaseTables]:
        """Return the tables before and, with a calibrator, after calibration."""
        before, after = self.count_each(case, {} if calibrator is None else {"": calibrator})
        return [before.tables, *(one.tables for one in after.values())]

    def count_each(
        self, case: Case, calibrators: Mapping[str, Map], predict: bool = False
    ) -> tuple[Counted, dict[str, Counted]]:
        """Return what was counted before, and after each of several calibrators; with predictions, if asked for."""
        if case.labels is None:
            raise InputError(
                f"labels of case {case.id!r} is missing, but every case needs labels to be measured. "
                "Open the cases with labels, or leave this one out."
            )
        labels, bands = case.labels, self._bands(case.id, case.labels)
        options = (self.bins, self.class_bins, bands)
        predict = predict or "surface" in self.needs
        before = count_logits(case.logits, labels, *options, predict=predict or bool(calibrators))
        compared = (*options, before.prediction, predict)
        after = {}
        for name, calibrator in calibrators.items():
            counted = _count_calibrated(case, labels, calibrator, compared)
            # The free energy is that of the input; what a calibrator returns has none of its own.
            after[name] = self._with_surface(case, counted._replace(tables=replace(counted.tables, free_energy=None)))
        return self._with_surface(case, before), after

    def _bands(self, case_id: str, labels: Tensor) -> LabelBands | None:
        if "bands" not in self.needs:
            return None
        return find_bands(labels.numpy()) if self.cache is None else self.cache.bands(case_id, labels.numpy())

    def _with_surface(self, case: Case, counted: Counted) -> Counted:
        if "surface" not in self.needs or counted.prediction is None or case.labels is None:
            return counted
        tables = counted.tables
        distances = surface_distances(counted.prediction, case.labels.numpy(), tables.num_classes, case.spacing)
        return counted._replace(tables=replace(tables, surface=distances))


@torch.no_grad()
def _count_calibrated(case: Case, labels: Tensor, calibrator: Map, options: tuple[Any, ...]) -> Counted:
    logits, context = case.logits[None], case.context
    if not isinstance(calibrator, Calibrator):
        return count_log_probs(calibrator(logits, context)[0], labels, *options)
    check_forward(logits, calibrator.num_classes)
    parameter = next(calibrator.parameters(), None)
    if parameter is not None and parameter.device != logits.device:
        logits = logits.to(parameter.device)
        context = Context(*(None if part is None else part.to(parameter.device) for part in context))
    # Decisions are compared in the scores, and counting normalises them: the log-probabilities are never written.
    logits = logits.to(compute_dtype(logits.dtype))
    whole = calibrator.pointwise
    scores = calibrator.scores(logits, context) if whole else tiled_scores(calibrator, logits, context, STEP_VALUES)
    return count_logits(scores[0], labels, *options)
