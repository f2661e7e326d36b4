r"""Hugging Face transformers: the logits are enlarged first and calibrated second.

Networks such as SegFormer answer at a quarter of the resolution, and are trained and judged on logits that are enlarged
to the labels. Calibrated before that, one to two labels in a hundred change; so nothing here calibrates coarse logits:

- :class:`CalibratedSegmentation` is the network: its ``outputs.logits`` are log-probabilities at the size of the input,
  or at ``target_size``, which ``post_process_semantic_segmentation`` then gets.
- :class:`CalibratedProcessor` is the image processor: it takes the outputs of the plain network, and its
  ``post_process_semantic_segmentation`` gives the same map with calibrated probabilities. It also takes mask
  classifiers (MaskFormer, Mask2Former, OneFormer, EoMT). Their scores s are sums of masks, no logits. They are
  calibrated as :math:`\log s - \log \sum s`, on which their calibrator must be fitted (:func:`mask_logits`).
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from segcal.calibrators.base import Calibrator
from segcal.cases.keep_argmax import keep_decision
from segcal.errors import InputError
from segcal.fitting.artifact import save, to_fitted
from segcal.fitting.certificate import Fitted
from segcal.integrations.attach import Calibrating, calibrated_probs, check_classes, enlarge, need, to_calibrator
from segcal.numerics import winner

FOLDER = "calibrator"


class CalibratedSegmentation(nn.Module):
    """A network ``*ForSemanticSegmentation`` whose ``outputs.logits`` are calibrated log-probabilities.

    Args:
        model: the network.
        calibrator: for its logits at the resolution of the labels: a folder, the result of a fit, or a calibrator.
    """

    def __init__(self, model: nn.Module, calibrator: Calibrating) -> None:
        super().__init__()
        config: Any = getattr(model, "config", None)
        if config is None or not hasattr(model, "save_pretrained"):
            raise InputError(
                f"model is {type(model).__name__}, but a network of transformers is needed. Use segcal.attach for it."
            )
        self.model = model
        self.fitted: Calibrator | Fitted = to_fitted(calibrator)
        self.calibrator = to_calibrator(self.fitted)
        check_classes(self.calibrator, int(config.num_labels), type(model).__name__)

    @property
    def config(self) -> Any:
        """The configuration of the network."""
        return self.model.config

    def forward(self, pixel_values: Tensor, target_size: Sequence[int] | None = None, **named: Any) -> Any:
        """Return the outputs of the network with log-probabilities at ``target_size``, or the size of the input."""
        outputs = self.model(pixel_values=pixel_values, **named, return_dict=True)
        if getattr(outputs, "logits", None) is None:
            raise InputError(
                f"{type(self.model).__name__} returns {', '.join(outputs)}, but one logit per class is needed. "
                "Use segcal.integrations.transformers.CalibratedProcessor for mask classifiers."
            )
        logits = enlarge(outputs.logits, target_size or pixel_values.shape[2:])
        return type(outputs)(**{**outputs, "logits": self.calibrator(logits)})

    def save_pretrained(self, folder: str | os.PathLike[str], **named: Any) -> None:
        """Write the network as it writes itself, and the calibrator into ``calibrator/`` beside it."""
        if not isinstance(self.fitted, Fitted):
            raise InputError(
                f"calibrator is a bare {self.calibrator.name}, but what is saved says where it came from. Make this "
                "object with the result of segcal.fit, or with a folder."
            )
        self.model.save_pretrained(folder, **named)  # type: ignore[operator]
        save(self.fitted, Path(folder) / FOLDER)

    @classmethod
    def from_pretrained(cls, folder: str | os.PathLike[str], **named: Any) -> Self:
        """Read what :meth:`save_pretrained` wrote."""
        transformers = need("transformers", "hf")
        (architecture,) = transformers.AutoConfig.from_pretrained(folder).architectures
        model = getattr(transformers, architecture).from_pretrained(folder, **named)
        return cls(model, Path(folder) / FOLDER).eval()


class CalibratedProcessor:
    """An image processor whose semantic maps come with calibrated probabilities; all else is the processor's own.

    Args:
        processor: with ``post_process_semantic_segmentation``.
        calibrator: a folder, the result of a fit, or a calibrator.
    """

    def __init__(self, processor: Any, calibrator: Calibrating) -> None:
        self.processor = processor
        self.calibrator = to_calibrator(calibrator)

    def __call__(self, *images: Any, **named: Any) -> Any:
        """Prepare images, as the processor does."""
        return self.processor(*images, **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.processor, name)

    def post_process_semantic_segmentation(self, outputs: Any, target_sizes: Any = None, **named: Any) -> list[Any]:
        """Return the maps; with ``return_segmentation_scores=True``, with their probabilities."""
        scored = named.pop("return_segmentation_scores", False)
        found = self.processor.post_process_semantic_segmentation(
            outputs, target_sizes, return_segmentation_scores=True, **named
        )
        masks = "class_queries_logits" in outputs
        results = []
        for one in found:
            scores = one["segmentation_scores"]
            check_classes(self.calibrator, len(scores), "the network")
            probs = calibrated_probs(self.calibrator, mask_logits(scores) if masks else scores).to(scores.device)
            made = type(one)(data={"segmentation": probs.argmax(0), "segmentation_scores": probs})
            results.append(made if scored else made["segmentation"])
        return results


def mask_logits(scores: Tensor) -> Tensor:
    """Return logits ``(classes, *space)`` of the non-negative scores of a mask classifier, with the same winner.

    >>> mask_logits(torch.tensor([[0.2], [0.6]])).exp()
    tensor([[0.2500],
            [0.7500]])
    """
    values = scores.detach().cpu().float()
    logits = torch.log_softmax(values.clamp(min=torch.finfo(torch.float32).tiny).log(), dim=0)
    return torch.from_numpy(keep_decision(logits.numpy(), winner(values, axis=0).numpy(), "scores"))
