r"""Folds of whole groups, and what a calibrator is worth on the cases that it was not fitted to.

With validation cases there is one fold: fitted to the calibration cases, measured on those. Without, the calibration
cases are divided into a few parts of whole groups (patients, videos), and each part is held out once. A case is
measured by the mean NLL of its voxels and by its ECE (15 bins).

The *noise* of a mean difference over cases is that of their groups: with :math:`d_i` the difference in case i of n, and
g over groups,

.. math:: \mathrm{se}^2 = \frac{G}{G - 1} \frac{1}{n^2} \sum_g \Bigl(\sum_{i \in g} (d_i - \bar d)\Bigr)^2 .

Fits to overlapping folds are alike, so differences vary less within a division than between divisions; the variance is
raised by :math:`1 + K / (K - 1)` for K folds (Nadeau and Bengio, 2003). With one group it is not known.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch

from segcal.calibrators.base import Calibrator
from segcal.cases.base import Cases
from segcal.fitting.division import divide_folds
from segcal.fitting.sample import join
from segcal.fitting.scores import gap_sums, in_steps, nll_of
from segcal.fitting.voxels import HeldVoxels, VoxelSource, gather

BINS = 15
# Voxels of all cases together that a fit to a fold sees: what is compared are settings, not last digits.
FOLD_VOXELS = 1 << 15


class Fold(NamedTuple):
    """Voxels to fit to, the cases they come from, and voxels to measure on."""

    learn: VoxelSource
    cases: Cases
    held: VoxelSource


class Worth(NamedTuple):
    """What a calibrator is worth on one case: lower is better in both."""

    nll: float
    ece: float


class Noise(NamedTuple):
    """A mean over cases with its standard error; None where it is not known."""

    mean: float
    error: float | None


def count_folds(cases: Cases, validation: VoxelSource | None, most: int) -> int:
    """Return how many folds there are; 0 if nothing can be held out."""
    if validation is not None:
        return 1
    folds = len(divide_folds(cases, most, 0))
    return folds if folds > 1 else 0


def each_fold(
    cases: Cases, source: VoxelSource, validation: VoxelSource | None, most: int, seed: int
) -> Iterator[Fold]:
    """Yield the folds, at most so many, one in memory at a time; none if there is one group and no validation.

    The seed is that of the division and of the voxels that are left out.
    """
    if validation is not None:
        yield Fold(thinned(source, FOLD_VOXELS, seed), cases, validation)
        return
    parts = divide_folds(cases, most, seed)
    for part in parts if len(parts) > 1 else []:
        learned = [case_id for case_id in cases.ids if case_id not in part]
        learn, held = source.subset(learned), source.subset(part)
        if learn.used and held.used:
            yield Fold(thinned(learn, FOLD_VOXELS, seed), cases.subset(learned), held)


def thinned(source: VoxelSource, most: int, seed: int) -> VoxelSource:
    """Return about `most` voxels of a source, as many of each case as its share; all if it holds no more."""
    if source.used <= most:
        return source
    parts = [source.subset([case_id]) for case_id in source.ids]
    kept = [gather(part, max(1, round(most * part.used / source.used)), seed) for part in parts if part.used]
    counts = {part.ids[0]: voxels.labels.numel() for part, voxels in zip(parts, kept, strict=True) if part.used}
    return HeldVoxels(join(kept), counts)


def measure(calibrator: Calibrator, held: VoxelSource, device: torch.device) -> dict[str, Worth]:
    """Return what a calibrator is worth on every case of a source that has labelled voxels."""
    calibrator.to(device)
    found = {}
    for case_id in held.ids:
        one = held.subset([case_id])
        if one.used:
            found[case_id] = _worth(calibrator, one, device)
    calibrator.cpu()
    return found


@torch.no_grad()
def _worth(calibrator: Calibrator, source: VoxelSource, device: torch.device) -> Worth:
    total = weight = 0.0
    gaps = torch.zeros(BINS, dtype=torch.float64)
    for voxels in in_steps(source, device):
        log_probs = torch.log_softmax(calibrator.scores(voxels.logits[None])[0], 0)
        total += float((voxels.weight.double() * nll_of(log_probs, voxels.labels).double()).sum())
        weight += float(voxels.weight.sum(dtype=torch.float64))
        confidence, decided = log_probs.max(0)
        gaps += gap_sums(confidence.exp(), decided == voxels.labels, voxels.weight, BINS)
    return Worth(total / weight, float(gaps.abs().sum()) / weight)


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
    """Return the cases that both have, and first minus second in each."""
    ids = [case_id for case_id in first if case_id in second]
    return ids, [getattr(first[case_id], what) - getattr(second[case_id], what) for case_id in ids]
