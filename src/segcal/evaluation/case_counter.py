"""The tables that the chosen metrics need, of one case before and after calibration."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeAlias

import torch
from torch import Tensor

from segcal.calibrators.base import Calibrator
from segcal.cases.base import Case
from segcal.errors import InputError
from segcal.evaluation.slabs import calibrated_scores
from segcal.metrics import Metric
from segcal.metrics.needs import Needs
from segcal.statistics import BandCache, CaseTables, Counted
from segcal.types import Context

# A calibrator, or any function from logits (1, classes, *space) and a context to log-probabilities of that shape.
Map: TypeAlias = Calibrator | Callable[[Tensor, Context], Tensor]


class Counter:
    """Counts cases, making only the tables that are needed.

    Args:
        metrics: the metrics that will be read.
        cache: keeps the bands of label maps between runs, if given.
    """

    def __init__(self, metrics: Mapping[str, Metric], cache: BandCache | None = None) -> None:
        self._needs = Needs.of(metrics.values())
        self._cache = cache

    def count(self, case: Case, calibrator: Map | None) -> list[CaseTables]:
        """Return the tables before and, with a calibrator, after calibration."""
        before, after = self.count_each(case, {} if calibrator is None else {"": calibrator})
        return [before.tables, *(one.tables for one in after.values())]

    def count_each(
        self, case: Case, calibrators: Mapping[str, Map], predict: bool = False
    ) -> tuple[Counted, dict[str, Counted]]:
        """Return what was counted before, and after each of several calibrators; with predictions, if asked for."""
        labels, needs = case.labels, self._needs
        if labels is None:
            raise InputError(
                f"labels of case {case.id!r} is missing, but every case needs labels to be measured. "
                "Open the cases with labels, or leave this one out."
            )
        bands, size = needs.bands(labels, case.id, self._cache), case.spacing
        before = needs.count(case.logits, labels, bands, None, predict or bool(calibrators), size)
        after = {}
        for name, calibrator in calibrators.items():
            # Decisions are compared in the scores, and counting normalises them: no log-probabilities are written.
            scores = _scores(calibrator, case)
            foreign = not isinstance(calibrator, Calibrator)
            counted = needs.count(scores, labels, bands, before.prediction, predict, size, normalised=foreign)
            # The free energy is that of the input; what a calibrator returns has none of its own.
            after[name] = counted._replace(tables=replace(counted.tables, free_energy=None))
        return before, after


def _scores(calibrator: Map, case: Case) -> Tensor:
    if isinstance(calibrator, Calibrator):
        return calibrated_scores(calibrator, case)
    with torch.no_grad():
        return calibrator(case.logits[None], case.context)[0]
