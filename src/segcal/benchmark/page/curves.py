"""Curves, classes and bands of a pipeline, from the sums that its units keep.

Voxels of all repeats are counted together. The standard error of a bin's accuracy is that over the cases of one repeat,
averaged over repeats: repeats share cases, so more of them do not make it smaller.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segcal.benchmark.job import curves_of
from segcal.benchmark.results import FlipBands
from segcal.benchmark.results import UnitResult
from segcal.statistics import CaseTables
from segcal.statistics.reliability import Curve
from segcal.statistics.spread import CurveSpread, accuracy_error, accuracy_interval
from segcal.statistics.table import total_of

# Curves of so many classes are kept, those with most true voxels.
MOST_CLASSES = 24
DIGITS = 5


def pipeline_curves(units: Sequence[UnitResult], level: float, classes: Sequence[int]) -> dict[str, Any]:
    """Return the curves of a pipeline: "all", "foreground", and lists of "classes" and "bands", as plain data.

    Args:
        units: one a repeat.
        level: of the intervals.
        classes: those whose curves are kept.
    """
    apart = [curves_of(unit.tables) for unit in units]
    found: dict[str, Any] = {}
    for name in apart[0]:
        total = total_of({str(number): curves[name] for number, curves in enumerate(apart)})
        error = _error([curves[name] for curves in apart], [_spread(unit, name) for unit in units])
        low, high = accuracy_interval(total, error, level)
        if total.count.ndim == 1:
            found[name] = plain_curve(total, low, high)
        else:  # of bands the last holds voxels without a boundary
            places = classes if name == "classes" else range(len(total.count) - 1)
            found[name] = [plain_curve(total[place], low[place], high[place]) for place in places]
    return found


def plain_curve(curve: Curve, low: NDArray[np.float64], high: NDArray[np.float64]) -> dict[str, Any]:
    """Return a curve as lists: counts, mean confidence, accuracy and its interval; None in empty bins."""
    filled = curve.count > 0
    share = np.maximum(curve.count, 1)
    return {
        "count": curve.count.tolist(),
        "confidence": _numbers(np.where(filled, curve.confidence / share, np.nan)),
        "accuracy": _numbers(np.where(filled, curve.right / share, np.nan)),
        "low": _numbers(np.where(filled, low, np.nan)),
        "high": _numbers(np.where(filled, high, np.nan)),
    }


def shown_classes(tables: CaseTables) -> list[int]:
    """Return the classes whose curves are kept: all, or of many those with most true voxels, in their own order."""
    voxels = tables.confusion.count.sum(axis=1)
    return sorted(np.argsort(-voxels, kind="stable")[:MOST_CLASSES].tolist())


def class_rows(tables: CaseTables) -> list[dict[str, Any]]:
    """Return, for every class, its voxels, Dice of all voxels together, and how honest its probability is."""
    count = tables.confusion.count
    truth, predicted, both = count.sum(axis=1), count.sum(axis=0), np.diag(count)
    rows = []
    for number in range(tables.num_classes):
        either = int(truth[number] + predicted[number])
        row: dict[str, Any] = {
            "voxels": int(truth[number]),
            "dice": round(2 * int(both[number]) / either, DIGITS) if either else None,
        }
        if tables.classwise is not None:
            curve = tables.classwise["all"][number]
            total = int(curve.count.sum())
            row["error"] = round(float(np.abs(curve.right - curve.confidence).sum() / max(total, 1)), 7)
            row["mean_probability"] = round(float(curve.confidence.sum() / max(total, 1)), 7)
            row["frequency"] = round(int(curve.right.sum()) / max(total, 1), 7)
        rows.append(row)
    return rows


def band_rows(units: Sequence[UnitResult], tables: CaseTables) -> list[dict[str, Any]]:
    """Return, for every band of distance from a boundary, its voxels, mean confidence, accuracy, and flips."""
    if tables.bands is None:
        return []
    flips = total_of({str(unit.unit.repeat): FlipBands.from_plain(unit.total["flip_bands"]) for unit in units})
    curves = tables.bands.curves[15]
    rows = []
    for number, edge in enumerate(tables.bands.edges):
        voxels = int(curves.count[number].sum())
        rows.append(
            {
                "from": edge,
                "voxels": voxels,
                "confidence": round(float(curves.confidence[number].sum()) / voxels, 7) if voxels else None,
                "accuracy": round(int(curves.right[number].sum()) / voxels, 7) if voxels else None,
                "flips": int(flips.flips[number].sum()),
            }
        )
    return rows


def _spread(unit: UnitResult, name: str) -> CurveSpread | None:
    plain = unit.total.get("spread", {}).get(name)
    return None if plain is None else CurveSpread.from_plain(plain)


def _error(curves: Sequence[Curve], spreads: Sequence[CurveSpread | None]) -> NDArray[np.float64]:
    """Return the mean over repeats of the standard error; NaN where no repeat has one."""
    errors = [
        accuracy_error(curve, spread) for curve, spread in zip(curves, spreads, strict=True) if spread is not None
    ]
    if not errors:  # written by a version that did not keep it
        return np.full(curves[0].count.shape, np.nan)
    stacked = np.stack(errors)
    known = np.isfinite(stacked)
    return np.where(known.any(0), np.where(known, stacked, 0).sum(0) / np.maximum(known.sum(0), 1), np.nan)


def _numbers(values: NDArray[np.float64]) -> list[float | None]:
    return [None if np.isnan(value) else round(float(value), DIGITS) for value in values]
