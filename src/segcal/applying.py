"""Putting a fitted calibrator to work on a folder of predictions.

Before anything is written: does the calibrator fit the input (class count, pooling, offset)? For every case: are the
decisions kept that it promises to keep? What is written has been read back and compared.

A run that was interrupted is continued by the same call: a case that is complete, and not older than its input, is
left as it is. ``calibration.json`` in the output says what made it, so that two calibrators never share a folder.
"""

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from segcal.calibrators import registry_entry
from segcal.calibrators.base import Calibrator
from segcal.calibrators.look_around import tiled_scores
from segcal.cases.base import Case, CaseError, Cases
from segcal.cases.bounded import read_json
from segcal.cases.files import FileCases
from segcal.cases.maps import has_confidence, write_confidence
from segcal.cases.offset import require_offset
from segcal.cases.suspicion import other_origin, warn
from segcal.cases.writing import CaseWriter
from segcal.errors import InputError
from segcal.fitting.certificate import Fitted
from segcal.numerics import compute_dtype, winner

# Values of one step: large volumes are calibrated in slabs of voxels, which overlap where voxels see each other.
STEP_VALUES = 1 << 24
RECORD = "calibration.json"
FORMAT = "segcal-applied"
VERSION = 1


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
        if (folder / RECORD).is_file() and read_json(folder / RECORD).get("format") == FORMAT:
            raise InputError(
                f"{folder} holds predictions that are calibrated already, but the calibrator is for those that were "
                "not. Use the folder that they were made from."
            )
    entry = registry_entry(calibrator)
    name = type(calibrator).__name__ if entry is None else entry[0]
    require_offset(cases, name, calibrator.translation_invariant)
    warn(other_origin(fitted.origin, cases.origin))


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
        picture = None if image is None else image[None].to(parameter.device)
        scores = tiled_scores(calibrator, batch, picture, STEP_VALUES)[0].cpu()
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
        self,
        fitted: Fitted,
        cases: FileCases,
        folder: str | Path,
        kind: str | None = None,
        confidence_map: bool = False,
    ) -> None:
        self._calibrator = fitted.calibrator
        self._cases = cases
        self._folder = Path(folder)
        self._map = confidence_map
        record = _record(fitted, cases, kind)
        _check_folder(self._folder, cases, record)
        self._writer = CaseWriter(cases, folder, kind)
        _write_record(self._folder, record)

    def missing(self) -> FileCases:
        """Return the cases that are not in the folder yet, or older there than their input."""
        return self._cases.subset(case_id for case_id in self._cases.ids if not self._done(case_id))

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
        files: list[Path] = []
        if self._map:  # first: the scores are what makes a case complete
            confidence = log_probs.amax(0).exp().float().numpy()
            files.append(write_confidence(self._cases, case.id, confidence, self._folder, case.spacing))
        files += self._writer.write(case.id, log_probs, before if keeps else None)
        return Applied(before.numel(), flips, tuple(str(path) for path in files))

    def _done(self, case_id: str) -> bool:
        if not self._writer.done(case_id) or (self._map and not has_confidence(self._folder, case_id)):
            return False
        inputs = [member.files[case_id][0] for member in self._cases.members if case_id in member.files]
        written = self._folder / inputs[0].name
        return all(_time(path) <= _time(written) for path in inputs)


def _time(path: Path) -> int:
    return path.stat().st_mtime_ns


def _record(fitted: Fitted, cases: FileCases, kind: str | None) -> dict[str, Any]:
    """Return what the output depends on besides the cases."""
    digest = hashlib.sha256(repr((registry_entry(fitted.calibrator), fitted.calibrator.num_classes)).encode())
    for name, value in sorted(fitted.calibrator.state_dict().items()):
        digest.update(name.encode() + value.detach().cpu().numpy().tobytes())
    entry = registry_entry(fitted.calibrator)
    return {
        "format": FORMAT,
        "version": VERSION,
        "calibrator": type(fitted.calibrator).__name__ if entry is None else entry[0],
        "preserves": fitted.calibrator.preserves,
        "digest": digest.hexdigest(),
        "fitted_on": fitted.fingerprint,
        "pooling": cases.pooling,
        "members": len(cases.members),
        "kind": kind or cases.kind,
    }


def _check_folder(folder: Path, cases: FileCases, record: dict[str, Any]) -> None:
    """Refuse a folder in which the results of something else would be taken for ours."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file, but a folder is needed. Name a new one.")
    if (folder / RECORD).is_file():
        found = read_json(folder / RECORD)
        other = [name for name, value in record.items() if found.get(name) != value]
        if other:
            raise InputError(
                f"{folder} was calibrated with another {other[0]} ({found.get(other[0])!r}), but {record[other[0]]!r} "
                "is to be written. Name a new folder, or remove that one."
            )
        return
    inputs = {member.folder.resolve() for member in cases.members}
    names = {path.name for paths in cases.members[0].files.values() for path in paths[:1]}
    if folder.is_dir() and folder.resolve() not in inputs:  # the writer has a message for the input itself
        there = sorted(path.name for path in folder.iterdir() if path.name in names)
        if there:
            raise InputError(
                f"{folder} holds {there[0]}, which segcal apply did not write, but results would be mixed with it. "
                "Name a new folder."
            )


def _write_record(folder: Path, record: dict[str, Any]) -> None:
    beside = folder / f".{RECORD}.{os.getpid()}"
    beside.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    beside.replace(folder / RECORD)
