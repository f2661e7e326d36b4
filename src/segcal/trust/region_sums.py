r"""The sums of a case of regions, each region by itself: what :mod:`segcal.trust.sums` keeps.

A region has the probability :math:`\sigma(s)` and the mask :math:`s > 0`, where s are its calibrated log-odds after
nesting. It excludes no other: there is no rank among them, no kind of decision and no class beside it, and these sums
stay 0. What is left is what masks with a bounded share of errors are learned from (:mod:`segcal.decisions`).
"""

import numpy as np
import torch

from segcal.calibrators.per_region import PerRegion
from segcal.cases.base import Case
from segcal.evaluation.slabs import score_slabs
from segcal.trust.sums import BINS, STEP_VALUES, THRESHOLDS, CaseSums, Floats, TruthSums, voxel_size
from segcal.types import IGNORED


def sum_regions(calibrator: PerRegion, case: Case) -> CaseSums:
    """Return the sums of a case, with those of its labels if it has any."""
    a, b, c, d, e, f = np.zeros((6, calibrator.num_classes))
    sums = CaseSums(case.id, case.group or f"\0{case.id}", 0, *voxel_size(case.spacing), a, b, c, d, e, f)
    sums.truth = None if case.labels is None else TruthSums.none(calibrator.num_classes)
    for slab in score_slabs(calibrator, case, values=STEP_VALUES):
        odds = slab.scores[0].cpu()
        inside = torch.ones(odds.shape[1:], dtype=torch.bool) if case.mask is None else case.mask[slab.where]
        probs, masks = torch.sigmoid(odds)[:, inside], (odds > 0)[:, inside]
        sums.voxels += int(inside.sum())
        for total, values in zip((a, b, c, d), (masks, probs, probs * masks, probs * (1 - probs)), strict=True):
            total += values.sum(1, dtype=torch.float64).numpy()
        if case.labels is not None and sums.truth is not None:
            truths = calibrator.regions.truths(case.labels[slab.where][inside])
            _add_truths(sums.truth, probs, masks, truths)
    return sums


def _add_truths(sums: TruthSums, probs: torch.Tensor, masks: torch.Tensor, truths: torch.Tensor) -> None:
    known, there = truths != IGNORED, truths == 1
    for total, values in zip(
        (sums.truth, sums.found, sums.counted), (there, there & masks, known & masks), strict=True
    ):
        total += values.sum(1).numpy()
    reached = torch.bucketize(probs.contiguous(), torch.from_numpy(THRESHOLDS).to(probs), right=True)
    reached += BINS * torch.arange(len(probs))[:, None]
    for table, where in ((sums.by_prob, there), (sums.all_by_prob, known)):
        counts: Floats = torch.bincount(reached[where], minlength=table.size).double().numpy()
        table += counts.reshape(table.shape)
