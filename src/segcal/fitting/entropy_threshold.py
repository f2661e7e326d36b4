r"""Fitting of Meta-Cal: a threshold on the entropy, then a temperature for the voxels below it.

*Miscoverage*, the default. Of all right voxels a tenth, at most `n1_max`, is drawn at random. The threshold is the
entropy that a share alpha of them reaches. They are then laid aside. *Coverage accuracy*, with `target_accuracy`: n1
random voxels are cut into 20 bins of entropy with equal mass. The accuracy below each bin's end falls as entropy rises,
and a decreasing isotonic regression gives the entropy at which it meets the target.

The temperature is the exact minimiser of the NLL of all other voxels below the threshold. With
``large_temperature=None`` the temperature above it is the one with the lowest validation NLL of
:data:`segcal.fitting.selective.WRONG_TEMPERATURES`.
"""

import numpy as np
import scipy
import torch
from numpy.typing import NDArray
from torch import Tensor

from segcal.calibrators.meta_cal import MetaCal, entropy
from segcal.errors import InputError
from segcal.fitting.certificate import Certificate
from segcal.fitting.convex_problem import solve_temperature
from segcal.fitting.division import gather
from segcal.fitting.newton import Solution
from segcal.fitting.request import Request
from segcal.fitting.scores import certify, higher_quantiles, mean_nll
from segcal.fitting.selective import WRONG_TEMPERATURES
from segcal.fitting.voxels import HeldVoxels, Voxels
from segcal.numerics import winner

MOST_VOXELS = 1 << 22
SHARE = 10  # one in so many voxels sets the threshold
ENTROPY_BINS = 20


def fit_entropy_threshold(request: Request) -> Certificate:
    """Fit Meta-Cal; see the module docstring."""
    calibrator = request.calibrator
    assert isinstance(calibrator, MetaCal)
    voxels = gather(request.source, MOST_VOXELS, request.config.seed)
    height = entropy(voxels.logits, 0)[0].double().numpy()
    right = (winner(voxels.logits, 0) == voxels.labels).numpy()
    weight = voxels.weight.double().numpy()
    rng = np.random.default_rng(request.config.seed)
    chosen = _choose(calibrator, right, rng)
    if calibrator.target_accuracy is None:
        threshold = float(higher_quantiles(height[chosen], weight[chosen], 1 - calibrator.alpha))
    else:
        threshold = accuracy_threshold(height[chosen], right[chosen], weight[chosen], calibrator.target_accuracy)
    below = height < threshold
    rest = below.copy()
    rest[chosen] = False
    solution = _fit_temperature(request, voxels, torch.from_numpy(rest))
    with torch.no_grad():
        calibrator.threshold.fill_(threshold)
        if solution is not None:
            calibrator.inverse_temperature.copy_(solution.theta[0, 0])
    _choose_large(request, calibrator)
    passes = 3 if solution is None else solution.evaluations + 3
    details = _details(calibrator, len(chosen), weight, below, right, solution)
    done = solution is None or solution.converged
    used = voxels.labels.numel()
    return certify(request, "entropy_threshold", voxels=used, passes=passes, details=details, converged=done)


def accuracy_threshold(
    height: NDArray[np.float64], right: NDArray[np.bool_], weight: NDArray[np.float64], target: float
) -> float:
    """Return the entropy below which voxels have the accuracy `target`."""
    order = np.argsort(height, kind="stable")
    mass = np.cumsum(weight[order])
    number = np.minimum((ENTROPY_BINS * (mass - weight[order] / 2) / mass[-1]).astype(int), ENTROPY_BINS - 1)
    total = np.bincount(number, weights=weight[order], minlength=ENTROPY_BINS)
    filled = total > 0
    accuracy = np.bincount(number, weights=(weight * right)[order], minlength=ENTROPY_BINS)[filled] / total[filled]
    mean = np.bincount(number, weights=(weight * height)[order], minlength=ENTROPY_BINS)[filled] / total[filled]
    covered = np.cumsum(accuracy) / np.arange(1, len(accuracy) + 1)
    if not covered.min() <= target <= covered.max():
        raise InputError(
            f"target_accuracy is {target!r}, but accuracies from {covered.min():.4f} to {covered.max():.4f} can be "
            "reached by leaving uncertain voxels out. Choose one in this range, or use alpha."
        )
    by_accuracy = np.argsort(covered, kind="stable")
    falling = scipy.optimize.isotonic_regression(mean[by_accuracy], increasing=False).x
    return float(np.interp(target, covered[by_accuracy], falling))


def _choose(calibrator: MetaCal, right: NDArray[np.bool_], rng: np.random.Generator) -> NDArray[np.int64]:
    """Return the voxels that set the threshold: right ones, or any if accuracy is the target."""
    pool = np.flatnonzero(right) if calibrator.target_accuracy is None else np.arange(len(right))
    if not len(pool):
        raise InputError(
            f"all {len(right)} calibration voxels are mispredicted, but Meta-Cal sets its threshold on right ones. "
            "Check that labels and predictions number the classes alike."
        )
    size = max(1, min(calibrator.n1_max, len(pool) // SHARE))
    return np.sort(rng.choice(pool, size, replace=False))


def _fit_temperature(request: Request, voxels: Voxels, keep: Tensor) -> Solution | None:
    """Return the best temperature of some voxels; None without any."""
    if not bool(keep.any()):
        return None
    kept = voxels.take(keep).each(torch.Tensor.contiguous)
    source = HeldVoxels(kept, {"kept": kept.labels.numel()})
    return solve_temperature(source, request.device, request.config.tol, approach=False)


@torch.no_grad()
def _choose_large(request: Request, calibrator: MetaCal) -> None:
    if calibrator.above != "large_t" or calibrator.large_temperature is not None:
        return
    batches = request.source if request.validation is None else request.validation
    calibrator.to(request.device)
    found = {}
    for temperature in WRONG_TEMPERATURES:
        calibrator.inverse_temperature_unsure.fill_(1 / temperature)
        found[temperature] = mean_nll(calibrator, batches, request.device)
    calibrator.inverse_temperature_unsure.fill_(1 / min(found, key=lambda t: found[t]))


def _details(
    calibrator: MetaCal,
    n1: int,
    weight: NDArray[np.float64],
    below: NDArray[np.bool_],
    right: NDArray[np.bool_],
    solution: Solution | None,
) -> dict[str, object]:
    above_t = None if calibrator.above == "uniform" else 1 / float(calibrator.inverse_temperature_unsure.detach())
    covered = float(weight[below].sum())
    return {
        "threshold": float(calibrator.threshold.detach()),
        "n1": n1,
        "temperature": 1 / float(calibrator.inverse_temperature.detach()),
        "temperature_unsure": above_t,
        "share_below": covered / float(weight.sum()),
        "accuracy_below": float(weight[below & right].sum()) / covered if covered else None,
        "temperature_residual": None if solution is None else float(solution.residuals[0]),
    }
