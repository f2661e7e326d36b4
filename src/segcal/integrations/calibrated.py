"""What all stacks share: a calibrator from wherever it is, and the probabilities that ``segcal apply`` would write."""

import importlib
import os
from pathlib import Path
from types import ModuleType
from typing import TypeAlias

import torch
from torch import Tensor

from segcal.calibrators.base import Calibrator
from segcal.calibrators.per_region import PerRegion
from segcal.cases.base import Case
from segcal.cases.keep_argmax import keep_decision, keep_side
from segcal.checks import as_tensor
from segcal.errors import InputError, MissingExtraError
from segcal.evaluation.apply import calibrate
from segcal.fitting.artifact import to_fitted
from segcal.fitting.certificate import Fitted
from segcal.numerics import compute_dtype

Calibrating: TypeAlias = Calibrator | Fitted | str | os.PathLike[str]


def to_calibrator(source: Calibrating) -> Calibrator:
    """Return the calibrator of a folder, of a fit, or itself, ready to be used."""
    known = to_fitted(source)
    if isinstance(known, Calibrator):
        return known
    if isinstance(known, Fitted):
        return known.calibrator
    raise InputError(
        f"calibrator is {type(source).__name__}, but a folder of segcal.save, the result of segcal.fit or a calibrator "
        "is needed. Pass one of these."
    )


def check_classes(calibrator: Calibrator, num_classes: int, model: str) -> None:
    """Refuse a calibrator of another model."""
    if calibrator.num_classes != num_classes:
        raise InputError(
            f"{model} has {num_classes} classes, but the calibrator was fitted for {calibrator.num_classes}. "
            "Use the calibrator that was fitted on this model's predictions."
        )


def calibrated_probs(calibrator: Calibrator, logits: object, name: str = "logits") -> Tensor:
    """Return float32 probabilities ``(classes, *space)`` of one case on the CPU, as ``segcal apply`` writes them.

    Rounding never moves another class to the front where the calibrator promises to keep it. Of a calibrator of
    regions, the probability of each.
    """
    values = as_tensor(logits, name)
    scores = torch.as_tensor(values.detach().cpu()).as_subclass(Tensor)
    case = Case(name, scores.to(compute_dtype(scores.dtype)))
    log_probs, before, _ = calibrate(calibrator, case)
    if isinstance(calibrator, PerRegion):
        each = log_probs.double().sigmoid().float().numpy()
        return torch.from_numpy(keep_side(each, before.numpy(), 0.5, name) if calibrator.preserves else each)
    probs = log_probs.float().exp().numpy()
    return torch.from_numpy(keep_decision(probs, before.numpy(), name) if calibrator.preserves else probs)


def need(module: str, extra: str) -> ModuleType:
    """Import a framework, or say how it is installed."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"{error.name} is not installed, but segcal's part for {extra} needs it. Install it with: "
            f"pip install 'segcal[{extra}]'."
        ) from None


def folder_of(path: str | os.PathLike[str]) -> Path:
    """Return a path whose folder exists."""
    place = Path(path)
    if not place.parent.is_dir():
        raise InputError(f"{place} is in a folder that does not exist, but it is to be written. Make the folder first.")
    return place
