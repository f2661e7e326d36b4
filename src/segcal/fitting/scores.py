r"""Scores of a fitted calibrator on voxels: likelihood, calibration error, and how well errors are detected.

A held-out case is measured by the mean NLL of its voxels, and by its ECE (15 bins). Where distances to the boundary of
the labels are known, BA-ECE is measured too.

The *noise* of a mean difference over cases is that of their groups. With :math:`d_i` the difference in case i of n, and
g over groups,

.. math:: \mathrm{se}^2 = \frac{G}{G - 1} \frac{1}{n^2} \sum_g \Bigl(\sum_{i \in g} (d_i - \bar d)\Bigr)^2 .

Fits to overlapping folds are alike, so differences vary less within a split than between splits. The variance is
raised by :math:`1 + K / (K - 1)` for K folds (Nadeau and Bengio, 2003). With one group it is not known.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from segcal.calibrators.base import Calibrator
from segcal.fitting.certificate import Certificate
from segcal.fitting.request import Request
from segcal.fitting.voxels import Voxels, VoxelSource
from segcal.kernels.worth_numba import case_sums
from segcal.statistics.boundary import BAND_EDGES

STEP_VALUES = 1 << 21
BINS = 50
# Of one case, which has fewer voxels.
CASE_BINS = 15
# recall, precision, auroc, flagged_share, mispredicted_share
Detection: TypeAlias = dict[str, float | None]


class Worth(NamedTuple):
    """The scores of a calibrator on one case: lower is better; None where one is not defined or not known."""

    nll: float
    ece: float
    ba_ece: float | None = None


class Noise(NamedTuple):
    """A mean over cases with its standard error; None where it is not known."""

    mean: float
    error: float | None


def in_steps(batches: Iterable[Voxels], device: torch.device | None = None) -> Iterator[Voxels]:
    """Cut batches into parts of bounded size, and bring them to a device."""
    return (part for voxels in batches for part in voxels.steps(STEP_VALUES, device))


@torch.no_grad()
def mean_nll(calibrator: Calibrator, batches: Iterable[Voxels], device: torch.device | None = None) -> float:
    """Return the weighted mean NLL of a calibrator at single voxels, summed in float64."""
    total = weight = 0.0
    for voxels in in_steps(batches, device):
        scores = calibrator.scores_at(voxels.logits, voxels.context)
        total += float((voxels.weight.double() * nll_of(scores, voxels.labels).double()).sum())
        weight += float(voxels.weight.sum(dtype=torch.float64))
    return total / weight


def both_nlls(request: Request) -> tuple[float, float | None]:
    """Return the mean NLL of the request's calibrator on its voxels and, if there are some, on those for validation.

    It is measured on the request's device and left on the processor.
    """
    calibrator = request.calibrator.to(request.device)
    own = mean_nll(calibrator, request.source, request.device)
    validation = None if request.validation is None else mean_nll(calibrator, request.validation, request.device)
    calibrator.cpu()
    return own, validation


def certify(request: Request, method: str, nll: float | None = None, **known: Any) -> Certificate:
    """Return the certificate of a fit from what is `known` of it.

    Without a mean NLL, that is measured, on the validation voxels too. Without a penalty it is the objective.
    """
    if nll is None:
        nll, known["validation_nll"] = both_nlls(request)
    usual = {"objective": nll, "kkt_residual": None, "converged": True, "passes": 1}
    counts = {"voxels": request.source.used, "voxels_available": request.source.available}
    return Certificate(method=method, nll=nll, **(usual | counts | known))


def nll_of(scores: Tensor, labels: Tensor) -> Tensor:
    """Return the NLL of each voxel from unnormalised scores ``(C, n)``."""
    return torch.logsumexp(scores, 0) - scores.gather(0, labels.long()[None])[0]


def gap_sums(confidence: Tensor, right: Tensor, weight: Tensor, bins: int = BINS) -> Tensor:
    """Return, for each bin of confidence (lo, hi], the weighted sum of confidence minus correctness."""
    edges = torch.arange(1, bins, dtype=torch.float64, device=confidence.device) / bins
    number = torch.searchsorted(edges, confidence.double())
    gaps = weight.double() * (confidence.double() - right.double())
    return torch.zeros(bins, dtype=torch.float64, device=gaps.device).index_add(0, number, gaps).cpu()


def measure(calibrator: Calibrator, held: VoxelSource, device: torch.device) -> dict[str, Worth]:
    """Return what a calibrator is worth on every case of a source that has labelled voxels."""
    worths = dict(held.by_case(partial(_worth, calibrator.cpu(), device)))
    calibrator.cpu()
    return {case_id: worth for case_id, worth in worths.items() if worth is not None}


@torch.no_grad()
def _worth(calibrator: Calibrator, device: torch.device, case_id: str, batches: Iterable[Voxels]) -> Worth | None:
    calibrator = calibrator.to(device)
    total = weight = 0.0
    gaps: np.ndarray = np.zeros(CASE_BINS)
    bands: np.ndarray = np.zeros((3, len(BAND_EDGES)))  # gap, distance, weight
    for voxels in in_steps(batches, device):
        scores = calibrator.scores_at(voxels.logits, voxels.context).cpu()
        _, labels, own, _, distance = voxels.each(Tensor.cpu)
        found = case_sums(scores, labels, own, distance, CASE_BINS, BAND_EDGES[1:])
        total, gaps, bands = total + found[0], gaps + found[1], bands + found[2]
        weight += float(own.sum(dtype=torch.float64))
    if not weight:
        return None
    return Worth(total / weight, float(np.abs(gaps).sum()) / weight, _boundary_error(bands))


def _boundary_error(bands: np.ndarray) -> float | None:
    """Return the BA-ECE of sums per band; None if all are empty."""
    gap, distance, mass = bands[:, bands[2] > 0]
    share = 1 / (1 + distance / mass)
    return float((share * np.abs(gap / mass)).sum() / share.sum()) if len(mass) else None


def noise(values: Sequence[float], groups: Sequence[str], folds: int) -> Noise:
    """Return the mean of one value per case, whose groups are given, and its standard error.

    See the module docstring; `folds` is 1 for validation cases.

    >>> noise([1.0, 2.0, 3.0, 4.0], ["a", "b", "c", "d"], folds=1)
    Noise(mean=2.5, error=0.6454972243679028)
    """
    column = np.asarray(values, float)
    mean = float(column.mean())
    names, index = np.unique(np.asarray(groups), return_inverse=True)
    if len(names) < 2:
        return Noise(mean, None)
    sums = np.bincount(index, weights=column - mean)
    variance = len(names) / (len(names) - 1) * float(sums @ sums) / len(column) ** 2
    return Noise(mean, math.sqrt(variance * (1 + (folds / (folds - 1) if folds > 1 else 0))))


def paired(first: Mapping[str, Worth], second: Mapping[str, Worth], what: str = "nll") -> tuple[list[str], list[float]]:
    """Return the cases in which both are known, and first minus second in each."""
    found = {}
    for case_id in (each for each in first if each in second):
        pair = getattr(first[case_id], what), getattr(second[case_id], what)
        if None not in pair:
            found[case_id] = pair[0] - pair[1]
    return list(found), list(found.values())


def difference(
    first: Mapping[str, Worth],
    second: Mapping[str, Worth],
    groups: Mapping[str, str],
    folds: int = 1,
    what: str = "nll",
) -> Noise:
    """Return the mean over cases of what the first has more than the second, with its noise; zero of no cases."""
    ids, values = paired(first, second, what)
    return noise(values, [groups[case_id] for case_id in ids], folds) if ids else Noise(0.0, 0.0)


def mean_over_cases(found: Mapping[str, Worth]) -> float:
    """Return the mean NLL over held-out cases."""
    return sum(worth.nll for worth in found.values()) / len(found)


def detection_quality(margin: NDArray[np.float64], wrong: NDArray[np.bool_], weight: NDArray[np.float64]) -> Detection:
    """Return how well mispredictions are found: flagged are voxels with a positive margin.

    Recall is the share of mispredictions that are flagged, precision the share of flagged voxels that are
    mispredicted; the AUROC counts equal margins half. What has no denominator is None.

    >>> found = detection_quality(np.array([2.0, 1, -1, -2]), np.array([True, False, True, False]), np.ones(4))
    >>> found["recall"], found["precision"], found["auroc"]
    (0.5, 0.5, 0.75)
    """
    flagged = margin > 0
    masks = {"wrong": wrong, "flagged": flagged, "hit": wrong & flagged}
    mass = {name: float(weight[mask].sum()) for name, mask in masks.items()}
    return {
        "recall": mass["hit"] / mass["wrong"] if mass["wrong"] else None,
        "precision": mass["hit"] / mass["flagged"] if mass["flagged"] else None,
        "auroc": weighted_auroc(margin, wrong, weight),
        "flagged_share": mass["flagged"] / float(weight.sum()),
        "mispredicted_share": mass["wrong"] / float(weight.sum()),
    }


def weighted_auroc(
    score: NDArray[np.float64], positive: NDArray[np.bool_], weight: NDArray[np.float64]
) -> float | None:
    """Return the probability that a positive has a higher score than a negative; None without one of the two."""
    levels, index = np.unique(score, return_inverse=True)
    up = np.bincount(index, weights=weight * positive, minlength=len(levels))
    down = np.bincount(index, weights=weight * ~positive, minlength=len(levels))
    pairs = up.sum() * down.sum()
    below = np.cumsum(down) - down
    return float((up * (below + down / 2)).sum() / pairs) if pairs else None


def higher_quantiles(
    values: NDArray[np.float64], weight: NDArray[np.float64], shares: ArrayLike
) -> NDArray[np.float64]:
    """Return the smallest value that at least each share of the weight does not exceed.

    >>> higher_quantiles(np.array([4.0, 1.0, 3.0, 2.0]), np.ones(4), [0.25, 0.5])
    array([1., 2.])
    """
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weight[order])
    return np.asarray(values[order][np.searchsorted(reached, np.asarray(shares) * reached[-1] * (1 - 1e-12))])
