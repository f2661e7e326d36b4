r"""Metrics of several raters: those of one rater read per vote, and beside them what bounds them.

Scores are means over raters; a calibration error compares confidence with the share of raters. NLL less entropy is the
divergence :math:`\mathrm{KL}(t \,\|\, q)`, Brier score less impurity the squared distance from the share
(:mod:`segcal.statistics.raters`). Dice and IoU are the mean over raters, and beside it that against the majority.

An expected volume :math:`y = \sum_v q_v` has with the volumes :math:`V_r` of raters, in units of their mean,

.. math:: \mathrm{CRPS} = \Bigl(\sum_r w_r |V_r - y| - \tfrac12 \sum_{r, s} w_r w_s |V_r - V_s|\Bigr) / \bar V .
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import numpy as np

from segcal.errors import InputError
from segcal.metrics.base import Metric, Reader
from segcal.metrics.masks import dice_score
from segcal.raters import Raters
from segcal.statistics.additive import Confusion, FreeEnergy
from segcal.statistics.boundary import Bands
from segcal.statistics.case import CaseTables
from segcal.statistics.raters import RaterTable
from segcal.statistics.reliability import Curve
from segcal.statistics.voxel_sample import VoxelSample


def rater_metrics(metrics: Mapping[str, Metric], raters: Raters | None) -> dict[str, Metric]:
    """Return the metrics as they are read of several raters, each followed by what bounds it; of one as they are."""
    if raters is None:
        return dict(metrics)
    found: dict[str, Metric] = {}
    for name, metric in metrics.items():
        if "surface" in metric.needs:
            raise InputError(
                f"metric {name!r} compares two surfaces, but the cases have several raters, each with its own. Measure "
                "it against the labels of one rater, or leave it out."
            )
        if name in ("dice", "miou"):
            title, value = f"{metric.title}, with the majority", partial(_of_majority, metric.value)
            if raters.form != "shares":
                found[name] = replace(metric, part=TABLE, value=partial(_of_each, metric.value))
            found[f"{name} (majority)"] = replace(metric, part=TABLE, value=value, title=title, plain="")
        else:
            found[name] = replace(metric, value=InVotes(metric.value, sum(raters.weights)))
        found |= BOUNDS.get(name, {})
    return found | {"rater_agreement": Metric("agreement of two raters", TABLE, _agreement, better=None)}


@dataclass(frozen=True)
class InVotes:
    """Reads a number from a table whose counts are of votes: of `total` in a voxel, which are what one label was."""

    value: Callable[..., float]
    total: int

    def __call__(self, part: Any, **options: Any) -> float:
        """Return the number."""
        return self.value(in_voxels(part, self.total), **options)


def in_voxels(part: Any, total: int) -> Any:
    """Return a table with counts of votes in units of voxels with all votes."""
    if isinstance(part, dict):
        return {key: in_voxels(value, total) for key, value in part.items()}
    if isinstance(part, np.ndarray | int):
        return part / total if np.asarray(part).dtype.kind == "i" else part
    if not hasattr(part, "__dataclass_fields__") or isinstance(part, FreeEnergy | VoxelSample):  # which count voxels
        return part
    return replace(part, **{f.name: in_voxels(getattr(part, f.name), total) for f in fields(part)})


def in_votes(part: Any, total: int) -> Any:
    """Return tables whose curves have sums in votes, as their counts are, for whoever divides one by the other."""
    if isinstance(part, dict):
        return {key: in_votes(value, total) for key, value in part.items()}
    if isinstance(part, Curve):
        return replace(part, confidence=part.confidence * total)
    if isinstance(part, CaseTables | Bands):
        return replace(part, **{f.name: in_votes(getattr(part, f.name), total) for f in fields(part)})
    return part


def _mean(numbers: list[float], weights: tuple[int, ...] | None = None) -> float:
    """Return the mean of what is defined; of equal numbers exactly that number."""
    values = np.array(numbers)
    known = ~np.isnan(values)
    if not known.any():
        return math.nan
    first = values[known][0]
    return float(
        first + np.average(values[known] - first, weights=None if weights is None else np.array(weights)[known])
    )


def _of_each(value: Callable[[Confusion], float], table: RaterTable) -> float:
    return _mean([value(Confusion(own, 0)) for own in table.each], table.weights)


def _of_majority(value: Callable[[Confusion], float], table: RaterTable) -> float:
    return value(Confusion(table.majority, 0))


def _dice_of_raters(table: RaterTable) -> float:
    return _mean([dice_score(Confusion(own, 0)) for own in table.between])


def _agreement(table: RaterTable) -> float:
    return table.agreeing / table.pairs if table.pairs else math.nan


def _per_vote(table: RaterTable, of: str, less: str = "") -> float:
    total = getattr(table, of) - (getattr(table, less) if less else 0)
    return float(total / (table.votes / sum(table.weights))) if table.votes else math.nan


def _volume_crps(table: RaterTable) -> float:
    """Return the mean over classes but the first that a rater marked; NaN of none, and of several cases together."""
    if table.volumes is None or table.expected is None:
        return math.nan
    there = table.volumes.sum(1) > 0
    volumes, weights = table.volumes[there].astype(float), np.array(table.weights, float)[: len(there)][there]
    weights /= max(weights.sum(), 1)
    mean, off = weights @ volumes, weights @ np.abs(volumes - table.expected)
    spread = np.einsum("r,s,rsc->c", weights, weights, np.abs(volumes[:, None] - volumes[None])) / 2
    own = np.flatnonzero(mean[1:] > 0) + 1
    return float(((off - spread)[own] / mean[own]).mean()) if len(own) else math.nan


TABLE = Reader("raters")
# What stands beside a metric.
BOUNDS = {
    "nll": {
        "rater_entropy": Metric("least NLL there can be", TABLE, partial(_per_vote, of="entropy"), "nat", None),
        "kl_to_share": Metric("NLL above it", TABLE, partial(_per_vote, of="nll", less="entropy"), "nat"),
    },
    "brier": {
        "rater_impurity": Metric("least Brier score there can be", TABLE, partial(_per_vote, of="impurity"), "", None),
        "brier_to_share": Metric(
            "squared distance to the share", TABLE, partial(_per_vote, of="brier", less="impurity"), ""
        ),
    },
    "accuracy": {
        "rater_accuracy": Metric("largest accuracy there can be", TABLE, partial(_per_vote, of="most"), better=None)
    },
    "dice": {"rater_dice": Metric("Dice score of two raters", TABLE, _dice_of_raters, better=None)},
    "cece": {"volume_crps": Metric("CRPS of volumes, relative", TABLE, _volume_crps, "")},
}
