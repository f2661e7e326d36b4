"""``segcal.attach``: a network that answers with calibrated log-probabilities; and what all frameworks share.

The order is fixed: whatever makes logits of the resolution of the labels comes first, the calibrator second. Averages
and interpolation of log-probabilities are no log-probabilities. So a network whose logits are coarser than its input is
refused until the user declares the order. A calibrated network inside MONAI's sliding windows is refused too. The first
outputs that look like probabilities bring a warning; later ones are not checked.

Shared are a calibrator from wherever it is, and the probabilities that ``segcal apply`` would write.
"""

import importlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from segcal.arguments import typed
from segcal.calibrators.base import Calibrator
from segcal.cases.base import Case
from segcal.cases.decision import decision_of
from segcal.cases.kinds import like_probabilities
from segcal.cases.suspicion import Suspicion, warn
from segcal.checks import as_tensor
from segcal.errors import InputError, MissingExtraError
from segcal.evaluation.apply import calibrate
from segcal.fitting.artifact import to_fitted
from segcal.fitting.certificate import Fitted
from segcal.numerics import compute_dtype

Calibrating: TypeAlias = Calibrator | Fitted | str | os.PathLike[str]
# Where networks keep their logits: torchvision's dictionaries; Hugging Face's outputs and mmsegmentation's samples.
KEYS = ("out", "logits")
PROBABILITIES = (
    "the network's outputs all lie in 0 to 1 and sum to 1, but logits are calibrated. Attach to what comes before the "
    "softmax, if that is so."
)
LINEAR = {1: "linear", 2: "bilinear", 3: "trilinear"}


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


def calibrated_probs(
    calibrator: Calibrator, logits: object, name: str = "logits", mask: Tensor | None = None
) -> Tensor:
    """Return float32 probabilities ``(classes, *space)`` of one case on the CPU, as ``segcal apply`` writes them.

    Rounding never moves another class to the front where the calibrator promises to keep it. Of a calibrator of
    regions, the probability of each. `mask` is True where something was predicted.
    """
    values = as_tensor(logits, name)
    scores = torch.as_tensor(values.detach().cpu()).as_subclass(Tensor)
    case = Case(name, scores.to(compute_dtype(scores.dtype)), mask=mask)
    log_probs, before, _ = calibrate(calibrator, case)
    decision = decision_of(calibrator.regions)
    probs = decision.encode(log_probs, decision.probs, np.dtype(np.float32))
    if calibrator.preserves:
        decision.keep(probs, before.numpy(), None, decision.probs, name)
    return torch.from_numpy(probs)


def need(module: str, extra: str) -> ModuleType:
    """Import a framework, or say how it is installed."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"{error.name} is not installed, but segcal's support of {extra} needs it. Install it with: "
            f"pip install 'segcal[{extra}]'."
        ) from None


def folder_of(path: str | os.PathLike[str]) -> Path:
    """Return a path whose folder exists."""
    place = Path(path)
    if not place.parent.is_dir():
        raise InputError(f"{place} is in a folder that does not exist, but it is to be written. Make the folder first.")
    return place


class CalibratedModel(nn.Module):
    """A network and its calibrator; made by :func:`attach`."""

    def __init__(self, model: nn.Module, calibrator: Calibrator, upsample: bool | None) -> None:
        super().__init__()
        self.model = model
        self.calibrator = calibrator
        self.upsample = upsample
        self._seen = False

    def forward(self, image: Tensor, *more: Any, **named: Any) -> Any:
        """Return what the network returns, with log-probabilities in the place of its logits."""
        if not torch.compiler.is_compiling():
            _refuse_windows()
        output = self.model(image, *more, **named)
        if isinstance(output, Tensor):
            return self._calibrated(output, image)
        if isinstance(output, tuple | list) and output and isinstance(output[0], Tensor):
            return type(output)([self._calibrated(output[0], image), *output[1:]])
        key = next((key for key in KEYS if isinstance(output, Mapping) and key in output), None)
        if key is None:
            raise InputError(
                f"the network returns {type(output).__name__}, but a tensor, a tuple that begins with one, or a "
                f"dictionary with {' or '.join(KEYS)} is needed. Wrap the network so that it returns its logits."
            )
        changed = {name: self._calibrated(value, image) if name == key else value for name, value in output.items()}
        return type(output)(**changed) if hasattr(output, "to_tuple") else changed

    def _calibrated(self, logits: Tensor, image: Tensor) -> Tensor:
        if logits.shape[2:] != image.shape[2:] and self.upsample is not False:
            if self.upsample is None:
                raise InputError(
                    f"the network's logits have space {tuple(logits.shape[2:])}, but its input has "
                    f"{tuple(image.shape[2:])}: calibrated first and enlarged later, labels change. Pass upsample=True "
                    "to enlarge first, or upsample=False if labels have the resolution of the logits."
                )
            logits = enlarge(logits, image.shape[2:])
        if not (self._seen or torch.compiler.is_compiling() or torch.jit.is_tracing()):  # once, not in a graph
            self._seen = True
            warn([Suspicion(PROBABILITIES)] if len(logits) and like_probabilities(logits[0].detach()) else [])
        return self.calibrator(logits)


@typed
def attach(model: nn.Module, calibrator: Calibrating, upsample: bool | None = None) -> CalibratedModel:
    """Return a module that runs a network and calibrates its logits.

    Args:
        model: from an image ``(batch, channels, *space)`` to logits, or to a tuple or dictionary with them.
        calibrator: a calibrator, the result of :func:`segcal.fit`, or a folder of :func:`segcal.save`.
        upsample: what to do where logits are coarser than the input. True: enlarge them, then calibrate. False: take
            them as they are. None: refuse, because the result depends on it.
    """
    if isinstance(model, CalibratedModel):
        raise InputError("model is calibrated already, but one calibrator is enough. Attach to its attribute `model`.")
    return CalibratedModel(model, to_calibrator(calibrator), upsample)


def enlarge(logits: Tensor, space: Any) -> Tensor:
    """Return logits interpolated linearly to another size, as networks and their post-processing do it."""
    return nn.functional.interpolate(logits, size=tuple(space), mode=LINEAR[logits.ndim - 2], align_corners=False)


def _refuse_windows() -> None:
    """Raise if a caller averages what is returned; nothing in the numbers could show it afterwards."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_globals.get("__name__") == "monai.inferers.utils":
            raise InputError(
                "the network of a sliding window is calibrated, but windows are averaged afterwards, and averages of "
                "log-probabilities are none. Pass the plain network, and use "
                "segcal.integrations.monai.CalibratedInferer(inferer, calibrator)."
            )
