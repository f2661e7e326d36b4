"""Writing calibrated scores in the format that came in.

A case is written into a folder of its own beside the target, read back, compared with the promise, and only then
renamed into place: an interruption leaves complete files or none. What the format keeps beside the scores (headers,
properties, label maps, other arrays) is kept. Voxels outside the mask, which were never predicted, keep their values.
"""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from segcal.cases.base import CaseError
from segcal.cases.decision import keep_binary_decision, keep_decision
from segcal.cases.files import FileCases
from segcal.cases.formats import Format
from segcal.cases.kinds import check_kind
from segcal.errors import InputError
from segcal.types import Kind


class CaseWriter:
    """Writes cases into one folder, like those that came in.

    Args:
        cases: the input; of an ensemble, the first member's files are followed.
        folder: the target, made if it is not there; never the input itself.
        kind: what to write: "logits" (calibrated log-probabilities, whose softmax is the calibrated probability),
            "probs" or "sigmoid"; None is the kind that came in.
    """

    def __init__(self, cases: FileCases, folder: str | Path, kind: str | None = None) -> None:
        self.cases = cases
        self.folder = Path(folder)
        self.format: Format = cases.members[0]
        self.kind: Kind = self.format.values_kind or (cases.kind if kind is None else check_kind(kind))
        inputs = {member.folder.resolve() for member in cases.members}
        if self.folder.resolve() in inputs:
            raise InputError(
                f"{folder} holds the predictions themselves, but they are never overwritten. Name a new folder."
            )
        if (self.kind == "sigmoid") != (cases.kind == "sigmoid") and self.format.values_kind is None:
            raise InputError(
                f"kind is {self.kind!r}, but {cases.kind!r} came in and has another shape. Leave kind out."
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        self.format.write_shared(self.folder)

    def done(self, case_id: str) -> bool:
        """Whether the case is complete in the target folder."""
        return (self.folder / self.format.path(case_id).name).exists()

    def write(self, case_id: str, log_probs: Tensor, decision: Tensor | None = None) -> tuple[Path, ...]:
        """Write one case and return its files.

        Args:
            case_id: which case.
            log_probs: calibrated log-probabilities ``(classes, *space)``.
            decision: the winning class of each voxel of the input, if the calibrator promises to keep it; the file is
                then read back, and its lowest-index argmax must be this.
        """
        try:
            return self._write(case_id, log_probs, None if decision is None else decision.cpu().numpy())
        except CaseError:
            raise
        except InputError as error:
            raise CaseError(case_id, str(error)) from None

    def _write(self, case_id: str, log_probs: Tensor, decision: np.ndarray | None) -> tuple[Path, ...]:
        values = self._encode(case_id, log_probs, decision)
        winner = self._winner(values)
        keeps_label = decision is not None and len(self.cases.members) == 1
        beside = self.folder / f".writing-{case_id}"
        shutil.rmtree(beside, ignore_errors=True)  # what an interrupted run left
        beside.mkdir()
        try:
            names = self.format.write(case_id, values, beside, None if keeps_label else winner)
            again = np.asarray(self.format.open_copy(beside).read(case_id).values)
            if not np.array_equal(self._winner(again), winner):
                raise InputError(
                    f"{names[-1]} read back has another winning class in some voxels, but the decision is to be kept. "
                    "This is a fault of the disk or of segcal: nothing was written."
                )
            return tuple(_move(beside / name, self.folder / name) for name in names)
        finally:
            shutil.rmtree(beside, ignore_errors=True)

    def _encode(self, case_id: str, log_probs: Tensor, decision: np.ndarray | None) -> np.ndarray:
        """Return what is to be stored, in its dtype and shape, with the decision kept and the padding untouched."""
        header = self.format.header(case_id)
        dtype = header.dtype if header.dtype.kind == "f" else np.dtype(np.float32)
        name = f"calibrated scores of case {case_id!r}"
        if self.kind == "sigmoid":
            foreground = log_probs[1].exp().cpu().numpy().astype(dtype)
            if decision is not None:
                keep_binary_decision(foreground, decision, name)
            return foreground.reshape(header.shape)
        values = _to_dtype(log_probs, self.kind, dtype)
        if values.shape != header.shape:
            raise InputError(f"{name} have shape {values.shape}, but the input has {header.shape}. Keep the shape.")
        stored = self.format.read(case_id) if self.format.has_mask else None
        mask = None if stored is None else stored.mask
        if decision is not None:
            keep_decision(values, decision if mask is None else np.where(mask, decision, values.argmax(axis=0)), name)
        if stored is not None and mask is not None and self.format.values_kind is None:
            np.copyto(values, np.asarray(stored.values), where=~mask)
        return values

    def _winner(self, values: np.ndarray) -> np.ndarray:
        if self.kind == "sigmoid":
            return (values > 0.5).astype(np.int64)
        return np.argmax(values, axis=0)


def _to_dtype(log_probs: Tensor, kind: Kind, dtype: np.dtype[Any]) -> np.ndarray:
    scores = log_probs.detach().cpu()
    scores = scores.to(torch.float64 if dtype == np.float64 else torch.float32)
    if kind == "probs":
        scores = scores.exp()
    values = scores.numpy()
    if kind == "logits":  # a log-probability below the range of the type stays finite
        values = np.maximum(values, np.finfo(dtype).min)
    return np.array(values, dtype)


def _move(source: Path, target: Path) -> Path:
    if target.is_dir():  # a zarr array is a folder, which cannot be replaced in one step
        shutil.rmtree(target)
    return source.replace(target)
