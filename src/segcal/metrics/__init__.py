"""Numbers from tables, and from tensors. :data:`METRICS` is the list of them all.

Every name of the list is a function of plain tensors as well, and :func:`meter` is fed batch by batch:

>>> import torch
>>> logits, labels = torch.tensor([[[2.0, 0.0], [0.0, 1.0]]]), torch.tensor([[0, 0]])
>>> import segcal
>>> segcal.metrics.accuracy(logits, labels)
0.5
>>> running = segcal.metrics.meter("accuracy", "dice")
>>> running.update(logits, labels)
>>> running.compute()
{'accuracy': 0.5, 'dice': 0.0}
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from segcal.checks import check_choice
from segcal.errors import InputError
from segcal.kernels.raw_tables import BENEFICIAL, HARMFUL, NEUTRAL
from segcal.metrics import masks, reliability, sampled, scores
from segcal.metrics.base import CurveReader, Metric, Reader
from segcal.metrics.raters import rater_metrics
from segcal.metrics.tensors import Meter, on_tensors

__all__ = [
    "CONVENTIONS", "METRICS", "Meter", "Metric", "Reader", "find_metrics", "meter", "rater_metrics", "with_convention",
]  # fmt: skip

_ECE, _ACE = reliability.expected_calibration_error, reliability.average_calibration_error
_MCE, _DEBIASED = reliability.maximum_calibration_error, reliability.debiased_calibration_error
_BINNED, _CECE = (_ECE, _ACE, _MCE, _DEBIASED), reliability.classwise_calibration_error
# Of calibration errors: as in the paper whose method this is, and as most others and their libraries count them.
CONVENTIONS = ("paper", "field")

# In the order of the paper's tables, then the rest. What is told in words is for readers of the report who know no
# statistics; a metric without words is not shown there.
METRICS: dict[str, Metric] = {
    "nll": Metric(
        "negative log-likelihood", Reader("likelihood"), partial(scores.voxel_mean, of="nll"), unit="nat"
    ).in_words(
        "Loss",
        "A strict score of the probabilities: confident mistakes cost most (negative log-likelihood, NLL). Lower "
        "is better; it has no upper end.",
    ),
    "dice": Metric("Dice score, foreground classes", Reader("confusion"), masks.dice_score, better="higher").in_words(
        "Dice",
        "How well the mask overlaps the truth; 100 % is a perfect mask. A calibrator that keeps the mask cannot "
        "change it.",
    ),
    "ece": Metric("calibration error", CurveReader("all", 50), _ECE).in_words(
        "Calibration error",
        "How far confidence is from the share of right predictions, on average over all voxels (ECE). 0 % would "
        "be perfect.",
    ),
    "ba_ece": Metric(
        "boundary-aware calibration error", Reader("bands"), reliability.boundary_calibration_error
    ).in_words(
        "Error by distance",
        "The same gap, weighted towards voxels near the edges of structures, where it matters most (BA-ECE).",
    ),
    "ace": Metric("average calibration error", CurveReader("all", 15), _ACE, pooled=True).in_words(
        "Error by level",
        "The same gap, with every level of confidence counting the same, however few voxels it has (ACE).",
    ),
    "flip_rate": Metric("voxels whose class changed", Reader("flips"), masks.flip_rate).in_words(
        "Mask changed", "Share of voxels whose predicted class the calibrator changed."
    ),
    "harmful_flips": Metric(
        "flips from right to wrong", Reader("flips"), partial(masks.flip_share, kind=HARMFUL)
    ).in_words("Harmful changes", "Of the changed voxels, the share that was right and became wrong."),
    "beneficial_flips": Metric(
        "flips from wrong to right", Reader("flips"), partial(masks.flip_share, kind=BENEFICIAL), better="higher"
    ).in_words("Useful changes", "Of the changed voxels, the share that was wrong and became right."),
    "neutral_flips": Metric(
        "flips from wrong to wrong", Reader("flips"), partial(masks.flip_share, kind=NEUTRAL), better=None
    ),
    "brier": Metric("Brier score", Reader("likelihood"), partial(scores.voxel_mean, of="brier"), unit="").in_words(
        "Brier score", "Mean squared distance between probabilities and truth, 0 to 2; lower is better."
    ),
    "accuracy": Metric("right voxels", Reader("confusion"), masks.pixel_accuracy, better="higher").in_words(
        "Voxels right", "Share of voxels whose predicted class is the true one."
    ),
    "miou": Metric(
        "mean intersection over union", Reader("confusion"), masks.mean_iou, better="higher", pooled=True
    ).in_words("Mean IoU", "Overlap of mask and truth, mean over classes, all voxels together."),
    "mce": Metric("largest calibration gap", CurveReader("all", 15), _MCE),
    "cece": Metric("class-wise calibration error", Reader("classwise", "all"), _CECE).in_words(
        "Error by class", "Calibration error of every class's own probability, averaged over classes."
    ),
    "ece_foreground": Metric("ECE where truth is foreground", CurveReader("foreground", 15), _ECE).in_words(
        "Error in structures", "Calibration error of voxels that truly belong to a structure."
    ),
    "ece_union": Metric("ECE where truth or prediction is foreground", CurveReader("union", 15), _ECE),
    "cece_foreground": Metric("CECE where truth is foreground", Reader("classwise", "foreground"), _CECE),
    "cece_union": Metric("CECE where truth or prediction is foreground", Reader("classwise", "union"), _CECE),
    "ece_correct": Metric("ECE of right predictions", CurveReader("right", 50), _ECE),
    "ece_wrong": Metric("ECE of wrong predictions", CurveReader("wrong", 50), _ECE).in_words(
        "Confidence when wrong", "How sure the model is where it is wrong; lower is better."
    ),
    "ece_boundary": Metric("ECE near the boundary", CurveReader("boundary", 50), _ECE).in_words(
        "Error at edges", "Calibration error of voxels less than 3 voxels from an edge."
    ),
    "ece_interior": Metric("ECE away from the boundary", CurveReader("interior", 50), _ECE),
    "entropy": Metric(
        "mean predictive entropy",
        Reader("likelihood"),
        partial(scores.voxel_mean, of="entropy"),
        unit="nat",
        better=None,
    ),
    "free_energy_std": Metric(
        "spread of the logits' offset", Reader("free_energy"), scores.free_energy_std, unit="nat", better=None
    ),
    "aurc": Metric("area under risk-coverage curve", Reader("ranking"), scores.area_under_risk_coverage),
    "augrc": Metric(
        "area under generalised risk-coverage curve", Reader("ranking"), scores.area_under_generalised_risk_coverage
    ),
    "root_brier": Metric("root Brier score", Reader("likelihood"), scores.root_brier_score, unit=""),
    "ece_debiased": Metric("calibration error less what chance adds", CurveReader("all", 15), _DEBIASED),
    "ece_equal_mass": Metric("ECE, equal-mass bins", Reader("sample"), reliability.equal_mass_calibration_error),
    "smooth_ece": Metric("smooth calibration error", CurveReader("all", 1000), reliability.smooth_calibration_error),
    "ece_kde": Metric(
        "calibration of all classes, by kernel density", Reader("sample"), sampled.kernel_density_error, unit=""
    ),
    "kce": Metric("squared kernel calibration error", Reader("sample"), sampled.kernel_calibration_error, unit=""),
    "error_auroc": Metric(
        "AUROC of errors by uncertainty", Reader("ranking"), scores.area_under_error_roc, better="higher"
    ),
    "cox_slope": Metric("Cox slope, 1 if calibrated", Reader("sample"), sampled.cox_slope, unit="", better=None),
    "cox_intercept": Metric(
        "Cox intercept, 0 if calibrated", Reader("sample"), sampled.cox_intercept, unit="", better=None
    ),
    "spiegelhalter_z": Metric(
        "Spiegelhalter's Z, 0 if calibrated", Reader("sample"), sampled.spiegelhalter_z, unit="", better=None
    ),
    "hd": Metric("Hausdorff distance", Reader("surface"), masks.hausdorff_distance, unit="distance"),
    "hd95": Metric("95 % Hausdorff distance", Reader("surface"), masks.hausdorff_95, unit="distance"),
}


def find_metrics(names: tuple[str, ...]) -> dict[str, Metric]:
    """Return the metrics with these names."""
    for name in names:
        check_choice(name, "metric", METRICS)
    return {name: METRICS[name] for name in names}


def with_convention(metrics: Mapping[str, Metric], convention: str) -> dict[str, Metric]:
    """Return metrics in a convention; "field" reads errors of binned confidence from 15 bins of all voxels together."""
    check_choice(convention, "convention", CONVENTIONS)
    read = {name for name, metric in metrics.items() if convention == "field" and metric.value in _BINNED}
    return {name: replace(m.with_bins(15), pooled=True) if name in read else m for name, m in metrics.items()}


def meter(
    *names: str, kind: str = "logits", ignore: int | None = None, average: str | None = None, **raters: Any
) -> Meter:
    """Return a meter of these metrics; the options are those of :class:`Meter`."""
    if not names or not all(isinstance(name, str) for name in names):
        raise InputError(f"names is {names!r}, but names of metrics are needed. Write for example meter('ece', 'nll').")
    return Meter(find_metrics(names), kind, ignore, average, **raters)


def __getattr__(name: str) -> Callable[..., float | None]:
    # So that a new metric is a function of tensors by being in the list.
    if name not in METRICS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return on_tensors(name, METRICS[name])


def __dir__() -> list[str]:
    return [*globals(), *METRICS]
