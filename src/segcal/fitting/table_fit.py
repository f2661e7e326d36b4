r"""Fitting of calibrators that are tables: histogram binning and the isotonic map.

**Histogram binning** has bins of confidence with equal mass, and the accuracy in each. Inner edges are the weighted
quantiles :math:`k / B` of the confidence. Where many voxels have one and the same confidence (saturated background),
several edges coincide and the bins between them stay empty; they keep what comes. An accuracy of exactly 0 or 1 would
make a single miss infinitely bad. It is kept half a voxel away from both, :math:`a_b \in [\tfrac{1}{2 n_b}, 1 -
\tfrac{1}{2 n_b}]` with :math:`n_b` the voxels of the bin.

**The isotonic map** pools adjacent violators over all pairs of voxel and class, by scipy. Pairs (probability, is it the
true class) are sorted by probability, equal probabilities joined, and the weighted least squares among non-decreasing
functions found. Its flat pieces become the table of the calibrator: the ends of each piece, linear in between. A
function with more pieces than the table holds is shortened by joining neighbouring pieces, the lightest first. A joined
piece has their mean, so the function stays non-decreasing and its mean the same.
"""

import numpy as np
import scipy
import torch
from numpy.typing import NDArray

from segcal.calibrators.tables import Histogram, Isotonic
from segcal.fitting.certificate import Certificate
from segcal.fitting.division import gather
from segcal.fitting.request import Request
from segcal.fitting.scores import certify, higher_quantiles, in_steps
from segcal.fitting.voxels import Voxels
from segcal.numerics import winner

MOST_VOXELS = 1 << 23


def fit_histogram(request: Request) -> Certificate:
    """Fit histogram binning; see the module docstring."""
    calibrator = request.calibrator
    assert isinstance(calibrator, Histogram)
    voxels = gather(request.source, MOST_VOXELS, request.config.seed)
    parts = [
        (torch.softmax(logits, 0).amax(0).cpu(), (winner(logits, 0) == labels).cpu())
        for logits, labels, *_ in in_steps([voxels], request.device)
    ]
    confidence = torch.cat([part[0] for part in parts]).double().numpy()
    right = torch.cat([part[1] for part in parts]).numpy()
    weight = voxels.weight.double().numpy()
    edges = higher_quantiles(confidence, weight, np.arange(1, calibrator.bins) / calibrator.bins)
    number = np.searchsorted(edges, confidence)
    mass = np.bincount(number, weights=weight, minlength=calibrator.bins)
    hits = np.bincount(number, weights=weight * right, minlength=calibrator.bins)
    known = mass > 0
    least = 0.5 / np.maximum(mass, 1.0)
    accuracy = np.clip(hits / np.where(known, mass, 1.0), least, 1 - least)
    with torch.no_grad():
        calibrator.edges.copy_(torch.from_numpy(edges))
        calibrator.accuracy.copy_(torch.from_numpy(np.where(known, accuracy, 0.5)))
        calibrator.known.copy_(torch.from_numpy(known.astype(float)))
    details = {"bins_filled": int(known.sum())}
    return certify(request, "histogram", voxels=voxels.labels.numel(), passes=2, details=details)


# Pairs that are sorted at once; a few hundred megabytes.
MOST_PAIRS = 1 << 24


def fit_isotonic(request: Request) -> Certificate:
    """Fit the isotonic map; see the module docstring."""
    calibrator = request.calibrator
    assert isinstance(calibrator, Isotonic)
    voxels = gather(request.source, max(1, MOST_PAIRS // calibrator.num_classes), request.config.seed)
    low, high, value, mass = monotone_pieces(*_pairs(voxels, request.device, calibrator.foreground))
    pieces = len(value)
    if calibrator.foreground:  # a single miss must not be infinitely bad
        value = np.clip(value, 0.5 / np.maximum(mass, 1.0), 1 - 0.5 / np.maximum(mass, 1.0))
    low, high, value = join_lightest(low, high, value, mass, calibrator.knots // 2)
    _write(calibrator, low, high, value)
    details = {"pieces": pieces, "pieces_kept": len(value)}
    return certify(request, "isotonic", voxels=voxels.labels.numel(), passes=2, details=details)


Numbers = NDArray[np.float64]


def monotone_pieces(probs: Numbers, own: Numbers, weight: Numbers) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """Return, for each flat piece of the best non-decreasing function, its ends, its value and its weight."""
    order = np.argsort(probs, kind="stable")
    probs, own, weight = probs[order], own[order], weight[order]
    starts = np.flatnonzero(np.diff(probs, prepend=-1.0))
    mass = np.add.reduceat(weight, starts)
    found = scipy.optimize.isotonic_regression(np.add.reduceat(weight * own, starts) / mass, weights=mass)
    points, first = probs[starts], found.blocks[:-1]
    return points[first], points[found.blocks[1:] - 1], found.x[first], found.weights


def join_lightest(
    low: Numbers, high: Numbers, value: Numbers, mass: Numbers, most: int
) -> tuple[Numbers, Numbers, Numbers]:
    """Join neighbouring pieces until `most` are left: runs of pieces whose weights sum to about the same."""
    while len(value) > most:
        light = np.minimum(mass[:-1], mass[1:])
        # Pairs with a light partner, half of what is too much at a time; no piece is in two pairs.
        wanted = np.sort(np.argsort(light, kind="stable")[: max(1, (len(value) - most) // 2)])
        pairs = [wanted[0]]
        for index in wanted[1:]:
            if index > pairs[-1] + 1:
                pairs.append(index)
        first = np.array(pairs)
        total = mass[first] + mass[first + 1]
        value[first] = (mass[first] * value[first] + mass[first + 1] * value[first + 1]) / total
        mass[first], high[first] = total, high[first + 1]
        low, high, value, mass = (np.delete(each, first + 1) for each in (low, high, value, mass))
    return low, high, value


def _pairs(voxels: Voxels, device: torch.device, foreground: bool) -> tuple[Numbers, Numbers, Numbers]:
    first = 1 if foreground else 0
    count = (len(voxels.logits) - first) * voxels.labels.numel()
    probs, own, weight = (np.empty(count) for _ in range(3))
    start = 0
    for logits, labels, mass, *_ in in_steps([voxels], device):
        found = torch.softmax(logits.double(), 0)[first:]
        is_own = torch.nn.functional.one_hot(labels.long(), len(logits)).T[first:]
        part = slice(start, start + found.numel())
        for target, values in ((probs, found), (own, is_own), (weight, mass.expand(len(found), -1))):
            target[part] = values.double().reshape(-1).cpu().numpy()
        start = part.stop
    return probs, own, weight


@torch.no_grad()
def _write(calibrator: Isotonic, low: Numbers, high: Numbers, value: Numbers) -> None:
    """Fill the table: both ends of every piece, and the last one repeated."""
    points = np.stack([low, high], axis=1).reshape(-1)
    values = np.repeat(value, 2)
    room = calibrator.knots - len(points)
    calibrator.points.copy_(torch.from_numpy(np.pad(points, (0, room), mode="edge")))
    calibrator.values.copy_(torch.from_numpy(np.pad(values, (0, room), mode="edge")))
    calibrator.used.fill_(1.0)
