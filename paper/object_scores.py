"""Detection and panoptic scores of objects, from rows of :data:`segcal.fitting.object_reference.OF_OBJECT`.

They follow picai_eval (free-response curve and average precision; a real object that is a further piece of one that is
paired already is neither right nor wrong) and panoptica (panoptic quality), to which tests hold them.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def free_response(
    scores: Floats, matched: Floats, real: Floats, truths: int, cases: int
) -> tuple[Floats, Floats, Floats]:
    """Return false objects per case, sensitivity and precision at each score as the threshold, highest score first.

    Objects of one score are listed together. Sensitivity is the share of all objects of the labels that are paired with
    a listed object; precision is the share of listed objects that are paired, without further pieces.
    """
    counted = (matched == 1) | (real == 0)
    scores, hits = scores[counted], matched[counted] == 1
    order = np.argsort(-scores, kind="stable")
    right, wrong = np.cumsum(hits[order]), np.cumsum(~hits[order])
    last = np.flatnonzero(np.append(np.diff(scores[order]) != 0, True)) if len(scores) else np.zeros(0, int)
    right, wrong = right[last], wrong[last]
    return wrong / max(cases, 1), right / max(truths, 1), right / (right + wrong)


def average_precision(scores: Floats, matched: Floats, real: Floats, truths: int) -> float:
    """Return the area of the steps under precision over recall; missed objects are never found."""
    _, recall, precision = free_response(scores, matched, real, truths, 1)
    return float((np.diff(recall, prepend=0.0) * precision).sum())


def sensitivity_at(false: Floats, sensitivity: Floats, rates: Sequence[float]) -> list[float]:
    """Return the largest sensitivity with at most so many false objects per case."""
    return [float(max(sensitivity[false <= rate], default=0.0)) for rate in rates]


def panoptic_quality(dice: Floats, truths: int) -> float:
    """Return PQ = sum of IoU of pairs / (pairs + half of all others); of an IoU above a half there is one pair at most.

    `dice` is that of each object with its best object of the labels.
    """
    iou = dice / (2 - dice)
    pairs = iou[iou > 0.5]
    others = len(iou) + truths - 2 * len(pairs)
    return float(pairs.sum() / (len(pairs) + others / 2)) if len(pairs) + others else float("nan")


def calibration_error(scores: Floats, real: Floats, bins: int = 10) -> float:
    """Return the expected calibration error of probabilities in bins of equal width."""
    place = np.minimum((scores * bins).astype(int), bins - 1)
    gaps = np.bincount(place, scores - real, minlength=bins)
    return float(np.abs(gaps).sum() / len(scores)) if len(scores) else float("nan")
