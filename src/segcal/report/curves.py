"""Reliability curves, classes and bands of a pipeline, from the sums over its test cases.

Voxels of all repeats are counted together. The standard error of a bin's accuracy is that over the cases of one repeat,
averaged over repeats: repeats share cases, so more of them do not make it smaller.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from segcal.report.document import BandRow, ClassRow, CurveLists, Curves
from segcal.resample import defined_mean
from segcal.statistics import CaseTables
from segcal.statistics.additive import total_of
from segcal.statistics.reliability import Curve, CurveSpread, accuracy_error, accuracy_interval

# Curves of so many classes are kept, those with most true voxels.
MOST_CLASSES = 24
# Bins of reliability diagrams, and what they are drawn of.
BINS = 15
REGIONS = ("all", "foreground")
DIGITS = 5


def thinned(tables: CaseTables) -> CaseTables:
    """Return the tables that figures need: reliability of all voxels and of foreground, one binning of the bands."""
    bands = tables.bands
    return replace(
        tables,
        reliability={
            bins: {name: regions[name] for name in (REGIONS if bins == BINS else REGIONS[:1])}
            for bins, regions in tables.reliability.items()
        },
        classwise=None if tables.classwise is None else {"all": tables.classwise["all"]},
        bands=None if bands is None else replace(bands, curves={BINS: bands.curves[BINS]}),
        surface=None,
    )


def curves_of(tables: CaseTables) -> dict[str, Curve]:
    """Return the curves of reliability diagrams that are there: "all", "foreground", "classes" and "bands"."""
    found = {name: curve for name, curve in tables.reliability[BINS].items() if name in REGIONS}
    if tables.classwise is not None:
        found["classes"] = tables.classwise["all"]
    if tables.bands is not None:
        found["bands"] = tables.bands.curves[BINS]
    return found


def pipeline_curves(
    repeats: Sequence[Mapping[str, Curve]],
    spreads: Sequence[Mapping[str, CurveSpread]],
    level: float,
    classes: Sequence[int] = (),
) -> Curves:
    """Return the curves of a pipeline, with intervals of this level.

    `repeats` has the curves of each repeat, named as in :class:`Curves`, those of "classes" and "bands" stacked, of
    which these `classes` are kept; `spreads` their spread over cases, without which there is no interval.
    """
    found: dict[str, CurveLists | list[CurveLists]] = {}
    for name in repeats[0]:
        own = [curves[name] for curves in repeats]
        total = total_of({str(number): curve for number, curve in enumerate(own)})
        known = [(curve, spread[name]) for curve, spread in zip(own, spreads, strict=True) if name in spread]
        errors = [accuracy_error(curve, spread) for curve, spread in known]  # an older version did not keep them
        error = defined_mean(np.stack(errors), axis=0) if errors else np.full(total.count.shape, np.nan)
        low, high = accuracy_interval(total, error, level)
        if total.count.ndim == 1:
            found[name] = _lists(total, low, high)
        else:  # of bands the last holds voxels without a boundary
            kept = classes if name == "classes" else range(len(total.count) - 1)
            found[name] = [_lists(total[number], low[number], high[number]) for number in kept]
    return Curves(**found)  # type: ignore[arg-type]


def shown_classes(tables: CaseTables) -> list[int]:
    """Return the classes whose curves are kept: all, or of many those with most true voxels, in their own order."""
    voxels = tables.confusion.count.sum(axis=1)
    return sorted(np.argsort(-voxels, kind="stable")[:MOST_CLASSES].tolist())


def class_rows(tables: CaseTables) -> list[ClassRow]:
    """Return a row for every class."""
    count = tables.confusion.count
    truth, predicted, both = count.sum(axis=1), count.sum(axis=0), np.diag(count)
    rows = []
    for number in range(tables.num_classes):
        either = int(truth[number] + predicted[number])
        row = ClassRow(int(truth[number]), round(2 * int(both[number]) / either, DIGITS) if either else None)
        if tables.classwise is not None:
            curve = tables.classwise["all"][number]
            total = max(int(curve.count.sum()), 1)
            row.error = round(float(np.abs(curve.right - curve.confidence).sum() / total), 7)
            row.mean_probability = round(float(curve.confidence.sum() / total), 7)
            row.frequency = round(int(curve.right.sum()) / total, 7)
        rows.append(row)
    return rows


def band_rows(tables: CaseTables, flips: NDArray[np.int64]) -> list[BandRow]:
    """Return a row for every band of distance from a boundary; `flips` ``(bands, kinds)`` counts them."""
    if tables.bands is None:
        return []
    curves = tables.bands.curves[BINS]
    rows = []
    for number, edge in enumerate(tables.bands.edges):
        voxels = int(curves.count[number].sum())
        confidence = round(float(curves.confidence[number].sum()) / voxels, 7) if voxels else None
        accuracy = round(int(curves.right[number].sum()) / voxels, 7) if voxels else None
        rows.append(BandRow(edge, voxels, confidence, accuracy, int(flips[number].sum())))
    return rows


def _lists(curve: Curve, low: NDArray[np.float64], high: NDArray[np.float64]) -> CurveLists:
    share = np.maximum(curve.count, 1)
    columns = [
        [round(float(value), DIGITS) if filled and not np.isnan(value) else None
         for value, filled in zip(column, curve.count > 0, strict=True)]
        for column in (curve.confidence / share, curve.right / share, low, high)
    ]  # fmt: skip
    return CurveLists(curve.count.tolist(), *columns)
