"""Putting a fitted calibrator to work on a folder of predictions.

Before anything is written: does the calibrator fit the input (class count, pooling, offset)? For every case: are the
decisions kept that it promises to keep? What is written has been read back and compared.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from segcal.calibrators.base import Calibrator
from segcal.cases.base import Case, CaseError, Cases
from segcal.cases.files import FileCases
from segcal.cases.maps import write_confidence
from segcal.cases.offset import require_offset
from segcal.cases.writing import CaseWriter
from segcal.errors import InputError
from segcal.fitting.certificate import Fitted
from segcal.numerics import compute_dtype, winner

# Values of one step: large volumes are calibrated in slabs of voxels.
STEP_VALUES = 1 << 24


@dataclass(frozen=True)
class Applied:
    """What was done to one case.

    Attributes:
        voxels: how many it has.
        flips: how many changed their class, strictly.
        files: what was written.
    """

    voxels: int
    flips: int
    files: tuple[str, ...]


def check_match(fitted: Fitted, cases: Cases, ignore_pooling: bool = False) -> None:
    """Refuse cases that are not of the model the calibrator was fitted for."""
    calibrator = fitted.calibrator
    if calibrator.num_classes != cases.num_classes:
        raise InputError(
            f"the calibrator has {calibrator.num_classes} classes, but the predictions have {cases.num_classes}. "
            "Use the calibrator that was fitted for this model."
        )
    if not ignore_pooling and None not in (fitted.pooling, cases.pooling) and fitted.pooling != cases.pooling:
        raise InputError(
            f"the predictions are pooled by {cases.pooling!r}, but the calibrator was fitted for {fitted.pooling!r}. "
            "Another pooling has other confidences: fit again on predictions like these."
        )
    require_offset(cases, type(calibrator).__name__, calibrator.translation_invariant)


@torch.no_grad()
def calibrate(calibrator: Calibrator, logits: Tensor, image: Tensor | None = None) -> tuple[Tensor, Tensor, int]:
    """Return calibrated log-probabilities and the winner before, of one case, and how many voxels changed their class.

    Args:
        calibrator: on any device.
        logits: ``(classes, *space)``.
        image: ``(channels, *space)``, for calibrators that see it.
    """
    parameter = next(calibrator.parameters(), torch.empty(0))
    scores_of = compute_dtype(logits.dtype)
    if not calibrator.pointwise:
        batch = logits[None].to(parameter.device, scores_of)
        scores = calibrator.scores(batch, None if image is None else image[None].to(parameter.device))[0].cpu()
    else:
        flat = logits.reshape(len(logits), -1)
        step = max(1024, STEP_VALUES // len(logits))
        scores = torch.empty(flat.shape, dtype=scores_of)
        for start in range(0, flat.shape[1], step):
            part = flat[None, :, start : start + step].to(parameter.device, scores_of)
            scores[:, start : start + step] = calibrator.scores(part)[0].cpu()
        scores = scores.reshape(logits.shape)
    before = winner(logits, axis=0)
    flips = int((scores.amax(0) > scores.gather(0, before[None])[0]).sum())
    return torch.log_softmax(scores, dim=0), before, flips


class Applier:
    """Calibrates a case and writes it in the format that came in; picklable, for several processes.

    Args:
        fitted: the calibrator.
        cases: the predictions.
        folder: where to write.
        kind: what to write; None is what came in.
        confidence_map: also write one map a case.
    """

    def __init__(
        self, fitted: Fitted, cases: FileCases, folder: Path, kind: str | None = None, confidence_map: bool = False
    ) -> None:
        self._calibrator = fitted.calibrator
        self._folder = Path(folder)
        self._map = confidence_map
        self.writer = CaseWriter(cases, folder, kind)

    def __call__(self, case: Case) -> Applied:
        """Calibrate and write one case."""
        log_probs, before, flips = calibrate(self._calibrator, case.logits, case.image)
        keeps = self._calibrator.preserves is not None
        if keeps and flips:
            raise CaseError(
                case.id,
                f"{flips} voxels changed their class, but the calibrator promises to keep it. "
                "The artefact is damaged or the promise is broken: run segcal audit; nothing was written.",
            )
        files = self.writer.write(case.id, log_probs, before if keeps else None)
        if self._map:
            confidence = log_probs.amax(0).exp().float().numpy()
            files += (write_confidence(self.writer.cases, case.id, confidence, self._folder),)
        return Applied(before.numel(), flips, tuple(str(path) for path in files))
