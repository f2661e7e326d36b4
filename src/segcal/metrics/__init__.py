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

from collections.abc import Callable
from dataclasses import replace

from segcal.checks import check_choice
from segcal.errors import InputError
from segcal.metrics import flips, likelihood, readers
from segcal.metrics import recalibration as cox
from segcal.metrics.base import Metric, Need
from segcal.metrics.kernel import kernel_calibration_error, kernel_density_error
from segcal.metrics.overlap import dice_score, mean_iou, pixel_accuracy
from segcal.metrics.ranking import area_under_error_roc, area_under_risk_coverage
from segcal.metrics.reliability import (
    average_calibration_error,
    boundary_calibration_error,
    classwise_calibration_error,
    debiased_calibration_error,
    equal_mass_calibration_error,
    expected_calibration_error,
    maximum_calibration_error,
)
from segcal.metrics.smooth import smooth_calibration_error
from segcal.metrics.surface import hausdorff_95, hausdorff_distance
from segcal.metrics.tensors import Meter, on_tensors

__all__ = ["METRICS", "Meter", "Metric", "find_metrics", "meter"]

_ECE, _CECE = expected_calibration_error, classwise_calibration_error
_SAMPLE: tuple[Need, ...] = ("sample",)

# In the order of the paper's tables, then the rest.
METRICS: dict[str, Metric] = {
    "nll": Metric("negative log-likelihood", readers.likelihood, likelihood.negative_log_likelihood, unit="nat"),
    "dice": Metric("Dice score, foreground classes", readers.confusion, dice_score, better="higher"),
    "ece": Metric("calibration error", readers.CurveReader("all", 50), _ECE, bins=50),
    "ba_ece": Metric("boundary-aware calibration error", readers.bands, boundary_calibration_error, needs=("bands",)),
    "ace": Metric(
        "average calibration error", readers.CurveReader("all", 15), average_calibration_error, pooled=True, bins=15
    ),
    "flip_rate": Metric("voxels whose class changed", readers.flips, flips.flip_rate, needs=("reference",)),
    "harmful_flips": Metric("flips from right to wrong", readers.flips, flips.harmful_flips, needs=("reference",)),
    "beneficial_flips": Metric(
        "flips from wrong to right", readers.flips, flips.beneficial_flips, better="higher", needs=("reference",)
    ),
    "neutral_flips": Metric(
        "flips from wrong to wrong", readers.flips, flips.neutral_flips, better=None, needs=("reference",)
    ),
    "brier": Metric("Brier score", readers.likelihood, likelihood.brier_score, unit=""),
    "accuracy": Metric("right voxels", readers.confusion, pixel_accuracy, better="higher"),
    "miou": Metric("mean intersection over union", readers.confusion, mean_iou, better="higher", pooled=True),
    "mce": Metric("largest calibration gap", readers.CurveReader("all", 15), maximum_calibration_error, bins=15),
    "cece": Metric("class-wise calibration error", readers.class_curves("all"), _CECE, needs=("classwise",)),
    "ece_foreground": Metric("ECE where truth is foreground", readers.CurveReader("foreground", 15), _ECE, bins=15),
    "ece_union": Metric("ECE where truth or prediction is foreground", readers.CurveReader("union", 15), _ECE, bins=15),
    "cece_foreground": Metric(
        "CECE where truth is foreground", readers.class_curves("foreground"), _CECE, needs=("classwise",)
    ),
    "cece_union": Metric(
        "CECE where truth or prediction is foreground", readers.class_curves("union"), _CECE, needs=("classwise",)
    ),
    "ece_correct": Metric("ECE of right predictions", readers.CurveReader("right", 50), _ECE, bins=50),
    "ece_wrong": Metric("ECE of wrong predictions", readers.CurveReader("wrong", 50), _ECE, bins=50),
    "ece_boundary": Metric(
        "ECE near the boundary", readers.CurveReader("boundary", 50), _ECE, bins=50, needs=("bands",)
    ),
    "ece_interior": Metric(
        "ECE away from the boundary", readers.CurveReader("interior", 50), _ECE, bins=50, needs=("bands",)
    ),
    "entropy": Metric("mean predictive entropy", readers.likelihood, likelihood.mean_entropy, unit="nat", better=None),
    "free_energy_std": Metric(
        "spread of the logits' offset", readers.free_energy, likelihood.free_energy_std, unit="nat", better=None
    ),
    "aurc": Metric("area under risk-coverage curve", readers.ranking, area_under_risk_coverage),
    "root_brier": Metric("root Brier score", readers.likelihood, likelihood.root_brier_score, unit=""),
    "ece_debiased": Metric(
        "calibration error less what chance adds", readers.CurveReader("all", 15), debiased_calibration_error, bins=15
    ),
    "ece_equal_mass": Metric("ECE, equal-mass bins", readers.sample, equal_mass_calibration_error, needs=_SAMPLE),
    "smooth_ece": Metric(
        "smooth calibration error", readers.CurveReader("all", 1000), smooth_calibration_error, bins=1000
    ),
    "ece_kde": Metric(
        "calibration of all classes, by kernel density", readers.sample, kernel_density_error, unit="", needs=_SAMPLE
    ),
    "kce": Metric("squared kernel calibration error", readers.sample, kernel_calibration_error, unit="", needs=_SAMPLE),
    "error_auroc": Metric("AUROC of errors by doubt", readers.ranking, area_under_error_roc, better="higher"),
    "cox_slope": Metric(
        "Cox slope, 1 if calibrated", readers.sample, cox.cox_slope, unit="", better=None, needs=_SAMPLE
    ),
    "cox_intercept": Metric(
        "Cox intercept, 0 if calibrated",
        readers.sample,
        cox.cox_intercept,
        unit="",
        better=None,
        needs=_SAMPLE,
    ),
    "spiegelhalter_z": Metric(
        "Spiegelhalter's Z, 0 if calibrated",
        readers.sample,
        cox.spiegelhalter_z,
        unit="",
        better=None,
        needs=_SAMPLE,
    ),
    "hd": Metric("Hausdorff distance", readers.surface, hausdorff_distance, unit="distance", needs=("surface",)),
    "hd95": Metric("95 % Hausdorff distance", readers.surface, hausdorff_95, unit="distance", needs=("surface",)),
}

# Title and sentence of the report, for readers who know no statistics; a metric without them is not shown there.
_IN_WORDS = {
    "nll": (
        "Loss",
        "A strict score of the probabilities: confident mistakes cost most (negative log-likelihood, NLL). Lower is "
        "better; it has no upper end.",
    ),
    "dice": (
        "Dice",
        "How well the mask overlaps the truth; 100 % is a perfect mask. A calibrator that keeps the mask cannot "
        "change it.",
    ),
    "ece": (
        "Calibration error",
        "How far confidence is from the share of right predictions, on average over all voxels (ECE). "
        "0 % would be perfect.",
    ),
    "ba_ece": (
        "Error by distance",
        "The same gap, weighted towards voxels near the edges of structures, where it matters most (BA-ECE).",
    ),
    "ace": (
        "Error by level",
        "The same gap, with every level of confidence counting the same, however few voxels it has (ACE).",
    ),
    "flip_rate": ("Mask changed", "Share of voxels whose predicted class the calibrator changed."),
    "harmful_flips": ("Harmful changes", "Of the changed voxels, the share that was right and became wrong."),
    "beneficial_flips": ("Useful changes", "Of the changed voxels, the share that was wrong and became right."),
    "brier": ("Brier score", "Mean squared distance between probabilities and truth, 0 to 2; lower is better."),
    "accuracy": ("Voxels right", "Share of voxels whose predicted class is the true one."),
    "miou": ("Mean IoU", "Overlap of mask and truth, mean over classes, all voxels together."),
    "cece": ("Error by class", "Calibration error of every class's own probability, averaged over classes."),
    "ece_foreground": ("Error in structures", "Calibration error of voxels that truly belong to a structure."),
    "ece_wrong": ("Confidence when wrong", "How sure the model is where it is wrong; lower is better."),
    "ece_boundary": ("Error at edges", "Calibration error of voxels less than 3 voxels from an edge."),
}
METRICS |= {name: replace(METRICS[name], plain=plain, sentence=text) for name, (plain, text) in _IN_WORDS.items()}


def find_metrics(names: tuple[str, ...]) -> dict[str, Metric]:
    """Return the metrics with these names."""
    for name in names:
        check_choice(name, "metric", METRICS)
    return {name: METRICS[name] for name in names}


def meter(*names: str, kind: str = "logits", ignore: int | None = None, average: str | None = None) -> Meter:
    """Return a meter of these metrics; the options are those of :class:`Meter`."""
    if not names or not all(isinstance(name, str) for name in names):
        raise InputError(f"names is {names!r}, but names of metrics are needed. Write for example meter('ece', 'nll').")
    return Meter(find_metrics(names), kind, ignore, average)


def __getattr__(name: str) -> Callable[..., float | None]:
    # So that a new metric is a function of tensors by being in the list.
    if name not in METRICS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return on_tensors(name, METRICS[name])


def __dir__() -> list[str]:
    return [*globals(), *METRICS]
