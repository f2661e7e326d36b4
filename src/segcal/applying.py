"""Putting a fitted calibrator to work on a folder of predictions.

Before anything is written: does the calibrator fit the input (class count, pooling, offset)? For every case: are the
decisions kept that it promises to keep? What is written has been read back and compared.

A run that was interrupted is continued by the same call: a case that is complete, and made from what is there now, is
left as it is. ``calibration.json`` in the output says what made it, so that two calibrators never share a folder.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from segcal.atomic import write_text
from segcal.calibrators import registry_entry
from segcal.calibrators.base import Calibrator
from segcal.calibrators.look_around import tiled_scores
from segcal.cases.base import Case, CaseError, Cases
from segcal.cases.files import FileCases
from segcal.cases.records import APPLIED as FORMAT
from segcal.cases.records import MARKER, Records, read_marker
from segcal.cases.suspicion import other_origin, warn
from segcal.cases.write import CaseWriter
from segcal.errors import InputError
from segcal.fitting.certificate import Fitted
from segcal.numerics import compute_dtype, winner
from segcal.target import entries
from segcal.types import Context

# Values of one step: large volumes are calibrated in slabs of voxels, which overlap where voxels see each other.
STEP_VALUES = 1 << 24
VERSION = 2


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
    for folder in [member.folder for member in cases.members] if isinstance(cases, FileCases) else []:
        if read_marker(folder) is not None:
            raise InputError(
                f"{folder} holds predictions that are calibrated already, but the calibrator is for those that were "
                "not. Use the folder that they were made from."
            )
    entry = registry_entry(calibrator)
    name = type(calibrator).__name__ if entry is None else entry[0]
    cases.require_offset(name, calibrator.translation_invariant)
    warn(other_origin(fitted.origin, cases.origin))


@torch.no_grad()
def calibrate(calibrator: Calibrator, logits: Tensor, context: Context | None = None) -> tuple[Tensor, Tensor, int]:
    """Return calibrated log-probabilities and the winner before, of one case, and how many voxels changed their class.

    Args:
        calibrator: on any device.
        logits: ``(classes, *space)``.
        context: of :attr:`segcal.cases.Case.context`, for calibrators that see it.
    """
    parameter = next(calibrator.parameters(), torch.empty(0))
    scores_of = compute_dtype(logits.dtype)
    if not calibrator.pointwise:
        batch = logits[None].to(parameter.device, scores_of)
        around = Context(*(None if part is None else part.to(parameter.device) for part in context or ()))
        scores = tiled_scores(calibrator, batch, around, STEP_VALUES)[0].cpu()
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
        overwrite: clear a folder that another calibrator made, and remove results that have no input any more.
    """

    def __init__(
        self,
        fitted: Fitted,
        cases: FileCases,
        folder: str | Path,
        kind: str | None = None,
        confidence_map: bool = False,
        overwrite: bool = False,
    ) -> None:
        self._calibrator = fitted.calibrator
        self._cases = cases
        self._map = confidence_map
        record = _record(fitted, cases, kind)
        text = json.dumps(record, indent=1) + "\n"
        _check_folder(Path(folder), cases, record, overwrite)
        self._writer = CaseWriter(cases, folder, kind, text)
        if read_marker(Path(folder)) != record:
            write_text(Path(folder) / MARKER, text)

    def missing(self) -> FileCases:
        """Return the cases that are not in the folder yet, or not made from what is there now, or damaged."""
        return self._cases.subset(case_id for case_id in self._cases.ids if not self._writer.done(case_id, self._map))

    def stale(self) -> list[str]:
        """Return the cases that have results in the folder but no predictions any more."""
        return self._writer.records.others(self._cases.ids)

    def __call__(self, case: Case) -> Applied:
        """Calibrate and write one case."""
        log_probs, before, flips = calibrate(self._calibrator, case.logits, case.context)
        broken = int(log_probs.isnan().sum())
        if broken:
            raise CaseError(
                case.id,
                f"{broken} calibrated values are not numbers, but all must be. The scores are too large for the "
                "calibrator, or it is damaged: run segcal audit; nothing was written.",
            )
        keeps = self._calibrator.preserves is not None
        if keeps and flips:
            raise CaseError(
                case.id,
                f"{flips} voxels changed their class, but the calibrator promises to keep it. "
                "The artefact is damaged or the promise is broken: run segcal audit; nothing was written.",
            )
        confidence = log_probs.amax(0).exp().float().numpy() if self._map else None
        files = self._writer.write(case.id, log_probs, before if keeps else None, confidence, case.spacing)
        return Applied(before.numel(), flips, tuple(str(path) for path in files))


def _record(fitted: Fitted, cases: FileCases, kind: str | None) -> dict[str, Any]:
    """Return what the output depends on besides the cases."""
    digest = hashlib.sha256(repr((registry_entry(fitted.calibrator), fitted.calibrator.num_classes)).encode())
    for name, value in sorted(fitted.calibrator.state_dict().items()):
        digest.update(name.encode() + value.detach().cpu().numpy().tobytes())
    entry = registry_entry(fitted.calibrator)
    return {
        "format": FORMAT,
        "version": VERSION,
        "made_by": "apply",
        "calibrator": type(fitted.calibrator).__name__ if entry is None else entry[0],
        "preserves": fitted.calibrator.preserves,
        "digest": digest.hexdigest(),
        "fitted_on": fitted.fingerprint,
        "pooling": cases.pooling,
        "members": len(cases.members),
        "kind": kind or cases.kind,
    }


def _check_folder(folder: Path, cases: FileCases, record: dict[str, Any], overwrite: bool) -> None:
    """Refuse a folder in which the results of something else would be taken for ours, or clear it if that is meant."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file, but a folder is needed. Name a new one.")
    if folder.resolve() in cases.folders():
        return  # the writer has a message for it
    found = read_marker(folder)
    if found is None:
        there = [name for name in entries(folder) if not name.startswith(".")]
        if there:
            raise InputError(
                f"{folder} holds {there[0]}, which segcal apply did not write, but results would be mixed with it. "
                "Name a new folder."
            )
        return
    other = [name for name, value in record.items() if found.get(name) != value]
    if other and not overwrite:
        raise InputError(
            f"{folder} was calibrated with another {other[0]} ({found.get(other[0])!r}), but {record[other[0]]!r} "
            "is to be written. Name a new folder, or pass overwrite=True."
        )
    if overwrite:
        records = Records(folder)
        records.remove(records.others(() if other else cases.ids))
