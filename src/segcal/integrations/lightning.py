"""Lightning: a callback that calibrates at the end of every validation, and keeps the calibrator in the checkpoint.

Of every validation case a bounded sample of voxels is kept, in float32 on the CPU. At the end the samples of all ranks
are put together in one order, so every rank fits the same calibrator. NLL and ECE are logged before and after on cases
that the logged fit has not seen. Each half of them is measured with a calibrator of the other half. What is kept is
fitted to all, an artefact of segcal inside the checkpoint: JSON and safetensors, never a pickle of ours.
"""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from segcal.calibrators import make_calibrator
from segcal.cases.arrays import ArrayCases
from segcal.checks import check_seed
from segcal.errors import InputError
from segcal.fitting.artifact import DESCRIPTION, WEIGHTS, load, save
from segcal.fitting.certificate import Fitted
from segcal.fitting.fit import fit
from segcal.integrations.attach import need
from segcal.metrics import meter

need("pytorch_lightning", "lightning")
from pytorch_lightning import Callback, LightningModule, Trainer  # noqa: E402

STATE = "segcal"


def logits_and_labels(outputs: Any, batch: Any) -> tuple[Tensor, Tensor]:
    """Return logits and labels where ``validation_step`` returns ``{"logits": ..., "labels": ...}``."""
    if isinstance(outputs, dict) and {"logits", "labels"} <= outputs.keys():
        return outputs["logits"], outputs["labels"]
    raise InputError(
        f"validation_step returns {type(outputs).__name__}, but logits and labels are needed. Return a dictionary with "
        "both, or pass read=, a function of outputs and batch that finds them."
    )


class CalibrationCallback(Callback):
    """Fits a calibrator at the end of validation, logs NLL and ECE before and after, and saves it with the checkpoint.

    Args:
        calibrator: the name of one that works voxel by voxel.
        ignore_index: the label that does not count.
        voxels: how many of each case are kept.
        read: from the outputs of ``validation_step`` and the batch to logits and labels.
        seed: of the sample of voxels.
        **raters: the declaration of several, as of :class:`segcal.ArrayCases`.
    """

    def __init__(
        self,
        calibrator: str = "ts",
        ignore_index: int | None = None,
        voxels: int = 20_000,
        read: Callable[[Any, Any], tuple[Tensor, Tensor]] = logits_and_labels,
        seed: int = 0,
        **raters: Any,
    ) -> None:
        if not make_calibrator(calibrator, 2).pointwise:
            raise InputError(
                f"calibrator is {calibrator}, but samples of voxels are kept and it sees neighbours. Choose another, "
                "or fit it with segcal.fit on whole images."
            )
        self.calibrator, self.ignore_index, self.voxels = calibrator, ignore_index, voxels
        self.read, self.seed, self.raters = read, check_seed(seed), raters
        self.fitted: Fitted | None = None
        self._kept: list[tuple[str, Tensor, Tensor]] = []

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Forget the validation before."""
        self._kept = []

    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int, *place: int
    ) -> None:
        """Keep a sample of the voxels of each case."""
        if trainer.sanity_checking:
            return
        logits, labels = self.read(outputs, batch)
        for row, (scores, truth) in enumerate(zip(logits.detach(), labels, strict=True)):
            flat, own = scores.flatten(1), truth.flatten(truth.ndim - scores.ndim + 1 if self.raters else 0)
            name = f"{batch_idx:06d}-{trainer.global_rank:04d}-{row:04d}"
            generator = torch.Generator().manual_seed(self.seed + batch_idx)
            chosen = torch.randperm(flat.shape[1], generator=generator)[: self.voxels].to(flat.device)
            self._kept.append((name, flat[:, chosen].float().cpu().clone(), own[..., chosen].cpu().clone()))

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Fit, and log what it is worth on cases that the fit has not seen."""
        if trainer.sanity_checking:
            return
        kept = sorted(_of_all_ranks(self._kept), key=lambda one: one[0])
        self._kept = []
        if not kept:
            raise InputError("validation has no cases, but a calibrator is fitted on them. Check the loader.")
        # Validation runs without gradients, in a mode that forbids them to whatever is made in it.
        with torch.inference_mode(False), torch.enable_grad():
            kept = [(name, logits.clone(), labels.clone()) for name, logits, labels in kept]
            self.fitted = self._fit(kept)
            if len(kept) > 1:
                pl_module.log_dict(self._measure(kept), rank_zero_only=True)

    def state_dict(self) -> dict[str, object]:
        """Return the artefact as bytes, for the checkpoint."""
        if self.fitted is None:
            return {}
        with tempfile.TemporaryDirectory() as folder:
            place = save(self.fitted, Path(folder) / "calibrator")
            return {STATE: {name: list((place / name).read_bytes()) for name in (DESCRIPTION, WEIGHTS)}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the artefact of a checkpoint."""
        self.fitted = _revived(state_dict[STATE]) if STATE in state_dict else None

    def _fit(self, kept: list[tuple[str, Tensor, Tensor]]) -> Fitted:
        ids, logits, labels = zip(*kept, strict=True)
        return fit(self.calibrator, ArrayCases(logits, labels, ids=ids, ignore=self.ignore_index, **self.raters))

    def _measure(self, kept: list[tuple[str, Tensor, Tensor]]) -> dict[str, float]:
        before, after = (meter("nll", "ece", ignore=self.ignore_index, **self.raters) for _ in range(2))
        for part in (0, 1):
            calibrator = self._fit(kept[1 - part :: 2]).calibrator
            for _, logits, labels in kept[part::2]:
                before.update(logits[None], labels[None])
                after.update(calibrator(logits[None]), labels[None])
        return {
            f"calibration/{name}_{stage}": float("nan") if value is None else value
            for stage, measured in (("before", before.compute()), ("after", after.compute()))
            for name, value in measured.items()
        }


def load_from_checkpoint(path: str | os.PathLike[str]) -> Fitted:
    """Return the calibrator that the callback left in a checkpoint; nothing else of the file is trusted."""
    content = torch.load(path, map_location="cpu", weights_only=True)
    for state in content.get("callbacks", {}).values():
        if isinstance(state, dict) and STATE in state:
            return _revived(state[STATE])
    raise InputError(f"{path} holds no calibrator of segcal, but one is needed. Train with CalibrationCallback.")


def _revived(files: dict[str, list[int]]) -> Fitted:
    with tempfile.TemporaryDirectory() as folder:
        for name in (DESCRIPTION, WEIGHTS):
            (Path(folder) / name).write_bytes(bytes(files[name]))
        return load(folder)


def _of_all_ranks(kept: list[tuple[str, Tensor, Tensor]]) -> list[tuple[str, Tensor, Tensor]]:
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return kept
    gathered: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(gathered, kept)
    return [one for part in gathered for one in part]
