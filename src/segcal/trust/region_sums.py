r"""The sums of a case of regions, each region by itself: what :mod:`segcal.trust.sums` keeps.

A region is a structure with the probability :math:`\sigma(s)` and the mask :math:`s > 0`, where s are its calibrated
log-odds after nesting. It excludes no other, so that there is no rank among them, no kind of decision and no class
beside it: these sums stay 0. They are what masks with a bounded share of errors are learned from
(:mod:`segcal.decisions`).
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
    regions = calibrator.regions
    size, unit = voxel_size(case.spacing)
    a, b, c, d, e, f = np.zeros((6, len(regions)))
    sums = CaseSums(case.id, case.group or f"\0{case.id}", 0, size, unit, a, b, c, d, e, f)
    sums.truth = None if case.labels is None else TruthSums.none(len(regions))
    for slab in score_slabs(calibrator, case, values=STEP_VALUES):
        odds = slab.scores[0]
        inside = (
            torch.ones_like(odds[0], dtype=torch.bool) if case.mask is None else case.mask[slab.where].to(odds.device)
        )
        probs, masks = torch.sigmoid(odds)[:, inside], (odds > 0)[:, inside]
        sums.voxels += int(inside.sum())
        sums.mask += _total(masks)
        sums.prob += _total(probs)
        sums.hit += _total(probs * masks)
        sums.spread += _total(probs * (1 - probs))
        if case.labels is not None and sums.truth is not None:
            labels = case.labels[slab.where].to(odds.device)[inside]
            for number, (own, mask) in enumerate(zip(probs, masks, strict=True)):
                truth = regions.truth(labels.cpu(), number).to(odds.device)
                _add_truth(sums.truth, number, own, mask, truth)
    return sums


def _add_truth(sums: TruthSums, number: int, probs: torch.Tensor, mask: torch.Tensor, truth: torch.Tensor) -> None:
    known, there = truth != IGNORED, truth == 1
    reached = torch.bucketize(probs.contiguous(), torch.from_numpy(THRESHOLDS).to(probs), right=True)
    sums.truth[number] += int(there.sum())
    sums.found[number] += int((there & mask).sum())
    sums.counted[number] += int((known & mask).sum())
    sums.by_prob[number] += torch.bincount(reached[there], minlength=BINS).double().cpu().numpy()
    sums.all_by_prob[number] += torch.bincount(reached[known], minlength=BINS).double().cpu().numpy()


def _total(values: torch.Tensor) -> Floats:
    return values.sum(1, dtype=torch.float64).cpu().numpy()
