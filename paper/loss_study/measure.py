"""Measuring one network of the study: as it is, after calibration, on the test cases and on corrupted ones.

Calibration errors have 15 bins and are taken on the foreground of the truth, or on the union of true and predicted
foreground, as in the paper. In streets class 0 is a class like the others, and both are taken on every voxel.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from paper.loss_study.data import Stored
from paper.loss_study.network import on_device
from paper.loss_study.plan import POST_HOC
from segcal.calibrators import Calibrator
from segcal.cases import ArrayCases, Case
from segcal.demo.tasks import Task
from segcal.errors import SegcalError
from segcal.evaluation.case_counter import Counter
from segcal.fitting import fit
from segcal.metrics import METRICS, Metric
from segcal.metrics.base import CurveReader, Reader
from segcal.metrics.reliability import classwise_calibration_error, expected_calibration_error
from segcal.statistics import BandCache, CaseTables
from segcal.statistics.reliability import Curve
from segcal.types import IGNORED

BINS = 15
NONE = "none"


def study_metrics(background: bool, surface: bool) -> dict[str, Metric]:
    """Return the metrics of a task; surface distances take long and do not depend on a calibration."""
    truth, union = ("foreground", "union") if background else ("all", "all")
    found = {name: METRICS[name] for name in ("dice", "nll", "brier", "ece", "ba_ece")}
    found["dice"] = METRICS["dice"].with_options(include_background=not background)
    for name, region in (("foreground", truth), ("union", union)):
        found[f"ece_{name}"] = Metric("ECE", CurveReader(region, BINS), expected_calibration_error, bins=BINS)
        found[f"cece_{name}"] = Metric("CECE", Reader("classwise", region), classwise_calibration_error)
    return found | ({"hd95": METRICS["hd95"]} if surface else {})


@torch.no_grad()
def predict(network: nn.Module, cases: Sequence[Stored], device: str) -> list[Tensor]:
    """Return float32 logits of each case on the CPU."""
    network.eval()
    return [network(on_device(case, device)[0][None])[0].float().cpu().contiguous() for case in cases]


def fit_post_hoc(
    cal: ArrayCases, val: ArrayCases, names: Sequence[str] = POST_HOC
) -> tuple[dict[str, Calibrator], dict[str, Any]]:
    """Fit each calibrator as :func:`segcal.fit` does; one that cannot be fitted is left out and its reason kept."""
    calibrators: dict[str, Calibrator] = {}
    facts: dict[str, Any] = {}
    for name in names:
        started = time.perf_counter()
        try:
            found = fit(name, cal, validation=val)
        except (SegcalError, RuntimeError, ArithmeticError) as error:
            facts[name] = {"error": f"{type(error).__name__}: {error}"}
        else:
            calibrators[name] = found.calibrator
            facts[name] = {
                "seconds": round(time.perf_counter() - started, 2),
                "passes": found.certificate.passes,
                "converged": found.certificate.converged,
            }
    return calibrators, facts


class Measurer:
    """Measures cases of one task; distances from label boundaries are kept between networks.

    Args:
        task: whose cases these are.
    """

    def __init__(self, task: Task) -> None:
        self.task = task
        self.plain, self.full = (study_metrics(task.background, surface) for surface in (False, True))
        self._cache = BandCache()

    def cases(self, stored: Sequence[Stored], logits: Sequence[Tensor]) -> ArrayCases:
        """Return cases with predictions."""
        return ArrayCases(
            logits=list(logits),
            labels=[case.labels for case in stored],
            ids=[case.id for case in stored],
            ignore=IGNORED,
            spacing=[self.task.spacing] * len(stored),
        )

    def measure(
        self, cases: ArrayCases, calibrators: Mapping[str, Calibrator], surface: bool
    ) -> tuple[dict[str, dict[str, list[float | None]]], list[Curve]]:
        """Return one number per case for each pipeline and metric, and each case's curve without calibration."""
        chosen = self.full if surface else self.plain
        values: dict[str, dict[str, list[float | None]]] = {}
        curves = []
        for case in cases:
            counted = self._count(case, calibrators, surface)
            curve = CurveReader("foreground" if self.task.background else "all", BINS)(counted[NONE])
            assert curve is not None  # the region is always counted
            curves.append(curve)
            for name, tables in counted.items():
                own = values.setdefault(name, {})
                for key, metric in chosen.items():
                    if key in self.plain or name == NONE:
                        own.setdefault(key, []).append(rounded(metric(tables)))
        return values, curves

    def _count(self, case: Case, calibrators: Mapping[str, Calibrator], surface: bool) -> dict[str, CaseTables]:
        counter = Counter(self.plain, self._cache)
        before, after = counter.count_each(case, calibrators)
        tables = {NONE: before.tables, **{name: one.tables for name, one in after.items()}}
        if surface:
            tables[NONE] = Counter(self.full, self._cache).count(case, None)[0]
        return tables


def logit_profile(logits: Sequence[Tensor], stored: Sequence[Stored], classes: int) -> list[list[float | None]]:
    """Return the mean absolute logit of each class (columns) where each class is true (rows), Fig. 4."""
    sums, counts = np.zeros((classes, classes)), np.zeros(classes)
    for values, case in zip(logits, stored, strict=True):
        for number in range(classes):
            mine = case.labels == number
            sums[number] += values.numpy()[:, mine].__abs__().sum(1, dtype=np.float64)
            counts[number] += mine.sum()
    return [
        [rounded(value / count) if count else None for value in row] for row, count in zip(sums, counts, strict=True)
    ]


def plain_curve(curves: Sequence[Curve]) -> dict[str, list[float]]:
    """Return the sum of curves as plain data."""
    total = sum(curves[1:], start=curves[0])
    return {key: [round(float(value), 4) for value in getattr(total, key)] for key in ("count", "right", "confidence")}


def rounded(value: float | None) -> float | None:
    """Return seven digits of a number: more than anything here depends on."""
    return None if value is None or not np.isfinite(value) else float(f"{value:.7g}")
