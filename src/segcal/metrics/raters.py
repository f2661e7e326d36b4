r"""Metrics of several raters: those of one rater read per vote, and how far the raters themselves agree.

Every number is that of the label maps of all raters, one after the other: NLL and Brier score are means over raters,
a calibration error compares confidence with the share of raters, and AURC ranks by that share. What cannot be reached
stands beside it (:mod:`segcal.statistics.raters`): the difference of NLL and entropy is the divergence
:math:`\mathrm{KL}(t \,\|\, q)`, that of Brier score and impurity the squared distance of probabilities from shares.

Dice and IoU are the mean over raters of the score against each, and beside it that against the majority.

The continuous ranked probability score compares an expected volume :math:`y = \sum_v q_v` with the volumes
:math:`V_r` of the raters, in units of their mean; for a volume without error it is the raters' spread:

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
from segcal.statistics import CaseTables
from segcal.statistics.additive import Confusion, FreeEnergy
from segcal.statistics.raters import RaterTable
from segcal.statistics.voxel_sample import VoxelSample

MAJORITY = "{} (majority)"


def rater_metrics(metrics: Mapping[str, Metric], raters: Raters) -> dict[str, Metric]:
    """Return the metrics as they are read of several raters, each followed by what bounds it."""
    found: dict[str, Metric] = {}
    for name, metric in metrics.items():
        if "surface" in metric.needs:
            raise InputError(
                f"metric {name!r} compares two surfaces, but the cases have several raters, who draw several. Measure "
                "it against the labels of one rater, or leave it out."
            )
        masks = metric.part == Reader("confusion") and metric.unit == "fraction" and name in ("dice", "miou")
        if masks:
            title = f"{metric.title}, with the majority"
            own = replace(metric, part=Reader("raters"), value=partial(_of_each, metric.value))
            found |= {name: own} if raters.form != "shares" else {}
            value = partial(_of_majority, metric.value)
            found[MAJORITY.format(name)] = replace(metric, part=Reader("raters"), value=value, title=title, plain="")
        else:
            found[name] = replace(metric, value=InVotes(metric.value, raters.total))
        found |= {key: bound for key, bound in BOUNDS.get(name, {}).items() if not masks or raters.form != "shares"}
    found["rater_agreement"] = Metric("agreement of two raters", Reader("raters"), _agreement, better=None)
    return found


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
    if isinstance(part, FreeEnergy | VoxelSample | RaterTable):  # which count voxels
        return part
    if isinstance(part, np.ndarray | int):
        return part / total if np.asarray(part).dtype.kind == "i" else part
    if hasattr(part, "__dataclass_fields__"):
        return replace(part, **{f.name: in_voxels(getattr(part, f.name), total) for f in fields(part)})
    return part


def _of_each(value: Callable[[Confusion], float], table: RaterTable) -> float:
    numbers = np.array([value(Confusion(own, 0)) for own in table.each])
    return _mean(numbers, np.array(table.weights))


def _mean(numbers: np.ndarray, weights: np.ndarray) -> float:
    """Return the mean of what is defined; of equal numbers exactly that number."""
    known = ~np.isnan(numbers)
    if not known.any():
        return math.nan
    first = numbers[known][0]
    return float(first + np.average(numbers[known] - first, weights=weights[known]))


def _of_majority(value: Callable[[Confusion], float], table: RaterTable) -> float:
    return value(Confusion(table.majority, 0))


def _agreement(table: RaterTable) -> float:
    return table.agreeing / table.pairs if table.pairs else math.nan


def _bound(table: RaterTable, of: str) -> float:
    return getattr(table, of) / (table.votes / sum(table.weights)) if table.votes else math.nan


def _best_accuracy(table: RaterTable) -> float:
    return table.most / table.votes if table.votes else math.nan


def _dice_of_raters(table: RaterTable) -> float:
    numbers = np.array([dice_score(Confusion(own, 0)) for own in table.between])
    return _mean(numbers, np.ones(len(numbers))) if len(numbers) else math.nan


def _volume_crps(table: RaterTable) -> float:
    """Return the mean over classes but the first that a rater marked; NaN of none, and of several cases together."""
    if table.volumes is None or table.expected is None:
        return math.nan
    there = table.volumes.sum(1) > 0
    volumes, weights = table.volumes[there].astype(float), np.array(table.weights, float)[: len(there)][there]
    if not len(volumes) or not volumes[:, 1:].any():
        return math.nan
    weights /= weights.sum()
    mean = weights @ volumes
    off = weights @ np.abs(volumes - table.expected)
    spread = np.einsum("r,s,rsc->c", weights, weights, np.abs(volumes[:, None] - volumes[None])) / 2
    own = np.flatnonzero(mean[1:] > 0) + 1
    return float(((off - spread)[own] / mean[own]).mean())


@dataclass(frozen=True)
class Excess:
    """Reads what a sum over voxels is above the least that raters leave."""

    of: str
    least: str
    needs: tuple[Any, ...] = ()

    def __call__(self, tables: CaseTables) -> RaterTable | None:
        """Return the table of raters with that excess in place of the least."""
        if tables.raters is None:
            return None
        more = getattr(tables.likelihood, self.of) - getattr(tables.raters, self.least)
        return replace(tables.raters, **{self.least: more})


@dataclass(frozen=True)
class _WithClasses:
    """Reads the table of raters where the probabilities of classes were added up."""

    needs: tuple[Any, ...] = ("classwise",)

    def __call__(self, tables: CaseTables) -> RaterTable | None:
        """Return the table."""
        return tables.raters


_ENTROPY, _IMPURITY = (partial(_bound, of=name) for name in ("entropy", "impurity"))
# What stands beside a metric.
BOUNDS: dict[str, dict[str, Metric]] = {
    "nll": {
        "rater_entropy": Metric("least NLL, the raters' entropy", Reader("raters"), _ENTROPY, "nat", None),
        "kl_to_share": Metric("NLL above the least", Excess("nll", "entropy"), _ENTROPY, "nat"),
    },
    "brier": {
        "rater_impurity": Metric("least Brier score", Reader("raters"), _IMPURITY, "", None),
        "brier_to_share": Metric("squared distance to the share", Excess("brier", "impurity"), _IMPURITY, ""),
    },
    "accuracy": {
        "rater_accuracy": Metric("largest accuracy there can be", Reader("raters"), _best_accuracy, better=None)
    },
    "dice": {
        "rater_dice": Metric("Dice score of two raters", Reader("raters"), _dice_of_raters, better=None),
        "volume_crps": Metric("CRPS of volumes, relative", _WithClasses(), _volume_crps, ""),
    },
}
