r"""Fitting of histogram binning: bins of confidence with equal mass, and the accuracy in each.

Inner edges are the weighted quantiles :math:`k / B` of the confidence. Where many voxels have one and the same
confidence (saturated background), several edges coincide and the bins between them stay empty; they keep what comes.
An accuracy of exactly 0 or 1 would make a single miss infinitely bad: it is kept half a voxel away from both,
:math:`a_b \in [\tfrac{1}{2 n_b}, 1 - \tfrac{1}{2 n_b}]` with :math:`n_b` the voxels of the bin.
"""

import numpy as np
import torch

from segcal.calibrators.histogram import Histogram
from segcal.fitting.certificate import Certificate
from segcal.fitting.request import Request
from segcal.fitting.scores import both_nlls, in_steps
from segcal.fitting.voxels import gather
from segcal.numerics import winner

MOST_VOXELS = 1 << 23


def fit_histogram(request: Request) -> Certificate:
    """Fit histogram binning; see the module docstring."""
    calibrator = request.calibrator
    assert isinstance(calibrator, Histogram)
    voxels = gather(request.source, MOST_VOXELS, request.config.seed)
    parts = [
        (torch.softmax(logits, 0).amax(0).cpu(), (winner(logits, 0) == labels).cpu())
        for logits, labels, _ in in_steps([voxels], request.device)
    ]
    confidence = torch.cat([part[0] for part in parts]).double().numpy()
    right = torch.cat([part[1] for part in parts]).numpy()
    weight = voxels.weight.double().numpy()
    edges = equal_mass_edges(confidence, weight, calibrator.bins)
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
    nll, validation = both_nlls(request)
    return Certificate(
        method="histogram",
        objective=nll,
        nll=nll,
        kkt_residual=None,
        converged=True,
        passes=2,
        voxels=voxels.labels.numel(),
        voxels_available=request.source.available,
        validation_nll=validation,
        details={"bins_filled": int(known.sum())},
    )


def equal_mass_edges(values: np.ndarray, weight: np.ndarray, bins: int) -> np.ndarray:
    """Return the inner edges of bins (lo, hi] that hold the same weight, as far as equal values allow.

    >>> equal_mass_edges(np.array([0.1, 0.2, 0.3, 0.4]), np.ones(4), 2)
    array([0.2])
    """
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weight[order])
    wanted = np.arange(1, bins) / bins * reached[-1] * (1 - 1e-12)
    return values[order][np.searchsorted(reached, wanted)]
