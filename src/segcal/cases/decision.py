"""The decision that makes a mask of scores: one winning class of a voxel, or yes or no for each region.

Readers, checks and writers ask it, so that none of them tells class models and region models apart: the two answer the
same questions. Classes exclude each other, and a mask is ``(*space)``, the lowest-index maximum. Regions overlap, and a
mask is ``(regions, *space)``, on above a logit of 0 (:mod:`segcal.regions`). Some comparisons know one number per voxel
only. For these a mask has a *map*: the class, or the last region that is on, counted from 1.
"""

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from segcal.cases.keep_argmax import keep_binary_decision, keep_decision, keep_side, lowest_argmax
from segcal.cases.kinds import Padding, find_padding, kind_warning_of, region_logits, to_log_domain
from segcal.checks import MAX_CLASSES
from segcal.kernels.compare_winner import BELOW, compare_winner, winners
from segcal.numerics import winner
from segcal.pooling import pool_each, pool_regions
from segcal.regions import Regions
from segcal.types import IGNORED, Kind


class _Classes:
    """The winner of classes that exclude each other; how many there are may not be known yet.

    Attributes:
        title, titles: what one output is called, and several.
        fewest: the smallest number of outputs.
        has_offset: whether adding a number to all logits of a voxel changes nothing that is decided or predicted.
        task: what the outputs are, as a fingerprint of cases says it.
        num_labels: how many labels there can be in a label map.
        values: how many values a map of a mask can have.
        probs: the kind of scores that are probabilities.
        overlap: whether several outputs can be on at one voxel.
    """

    title, titles, overlap = "class", "classes", False
    probs: Kind = "probs"
    fewest, has_offset = 2, True

    def __init__(self, num_classes: int | None) -> None:
        self._known = num_classes
        self.task = self.num_labels = self.values = num_classes or 0

    def logits(self, raw: object, kind: Kind, name: str) -> Tensor:
        """Return finite logits from one member's scores of a kind; `name` is for messages."""
        return to_log_domain(raw, kind, name, self._known)

    def pool(
        self, members: Iterable[Tensor], hows: Sequence[str], disagreement: bool
    ) -> tuple[list[Tensor], Tensor | None]:
        """Pool the logits of members in each way, and say where they disagree if that is asked for."""
        return pool_each(members, hows, disagreement)

    def kind_warning(self, logits: Tensor, kind: Kind) -> str:
        """Return why logits of one member hardly are of the declared kind; empty where nothing speaks against it."""
        return kind_warning_of(logits, kind)

    def padding(self, values: np.ndarray, mask: np.ndarray | None, kind: Kind) -> Padding | None:
        """Return the vector that fills a large share of the scores, where that is no prediction."""
        return None if kind == "sigmoid" else find_padding(values, mask)

    def mask_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of a mask, and of disagreement, from that of the logits."""
        return shape[1:]

    def mask(self, logits: Tensor) -> Tensor:
        """Return what logits decide."""
        return winners(logits) if logits.device.type == "cpu" else winner(logits, axis=0)

    def probabilities(self, scores: Tensor) -> Tensor:
        """Return the probabilities of scores."""
        return torch.softmax(scores, dim=0)

    def log_probs(self, scores: Tensor) -> Tensor:
        """Return what is written of calibrated scores: log-probabilities, or log-odds of regions."""
        return torch.log_softmax(scores, dim=0)

    def confidence(self, log_probs: Tensor) -> Tensor:
        """Return the probability of what is decided; of regions, that of the least sure one."""
        return log_probs.amax(0).exp()

    def changed(self, scores: Tensor, mask: Tensor) -> Tensor:
        """Return where scores decide otherwise than a mask, ``(*space)``; a tie with it decides as it does."""
        return torch.from_numpy(np.asarray(compare_winner(scores, mask) == BELOW))

    def structures(self, count: int, background: bool) -> range:
        """Return the outputs that are structures, of so many; class 0 is none if it is background."""
        return range(int(background), count)

    def each(self, mask: Tensor, structures: range) -> Tensor:
        """Return the mask of each of some structures, ``(structures, *space)``."""
        return torch.stack([mask == number for number in structures])

    def shown_as(self, structures: range) -> Sequence[int]:
        """Return what each of some structures is in a label map."""
        return structures

    def truth(self, labels: Tensor, number: int) -> Tensor:
        """Return where labels have one structure: 1, 0 where not, and :data:`IGNORED` as it was."""
        return torch.where(labels == IGNORED, labels, (labels == number).to(labels.dtype))

    def stored_mask(self, values: np.ndarray, kind: Kind) -> np.ndarray:
        """Return what stored scores of a kind decide."""
        return (values > 0.5).astype(np.int64) if kind == "sigmoid" else lowest_argmax(values)

    def targets(self, labels: Tensor) -> Tensor:
        """Return labels in the form of a mask; where voxels do not count it means nothing."""
        return labels

    def right(self, mask: Tensor, targets: Tensor) -> Tensor:
        """Return where all that is decided is right, ``(*space)``."""
        return mask == targets

    def counts(self, mask: Tensor, where: Tensor | None) -> tuple[int, ...]:
        """Return the voxels of each class or region in a mask, inside of `where`."""
        inside = mask.reshape(-1) if where is None else mask[where]
        return tuple(torch.bincount(inside, minlength=self.values).tolist())

    def map(self, mask: Tensor) -> Tensor:
        """Return one number per voxel."""
        return mask

    def label_map(self, mask: Tensor) -> Tensor:
        """Return the label map that a mask is shown as."""
        return mask

    def true_map(self, labels: Tensor | None) -> Tensor | None:
        """Return labels in the form of :meth:`map`, with voxels that do not count as they are."""
        return labels

    def may_become(self, kind: Kind, came: Kind) -> bool:
        """Whether scores that came as one kind can be written as another."""
        return (kind == "sigmoid") == (came == "sigmoid")

    def keeps_padding(self, kind: Kind, came: Kind) -> bool:
        """Whether values outside of the mask, which came as one kind, mean the same in what is written."""
        return True

    def encode(self, scores: Tensor, kind: Kind, dtype: np.dtype[Any]) -> np.ndarray:
        """Return a new array of a kind and type from calibrated log-probabilities, or log-odds of regions."""
        if kind == "sigmoid":
            return scores[1].exp().cpu().numpy().astype(dtype)
        values = scores.detach().cpu().to(torch.float64 if dtype == np.float64 else torch.float32)
        lowest = float(np.finfo(dtype).min)
        if kind == "probs":
            values = values.exp()
        elif dtype != np.float16 or (values.numel() and float(values.amin()) < lowest):
            values = values.clamp(min=lowest)  # a log-probability below the range of the type stays finite
        if dtype == np.float16:
            values = values.half()  # rounds as numpy does, many times faster
        return values.numpy().astype(dtype, copy=False)

    def keep(self, values: np.ndarray, mask: np.ndarray, inside: np.ndarray | None, kind: Kind, name: str) -> None:
        """Make encoded values decide as `mask` does, in place; rounding may have changed that."""
        if kind == "sigmoid":
            keep_binary_decision(values, mask, name)
        else:
            keep_decision(values, mask if inside is None else np.where(inside, mask, values.argmax(axis=0)), name)


class _Regions:
    """One decision for each region, on or off; labels that belong to no region are where none is."""

    title, titles, overlap = "region", "regions", True
    probs: Kind = "sigmoid"
    fewest, has_offset = 1, False
    num_labels = MAX_CLASSES

    def __init__(self, regions: Regions) -> None:
        self._regions = regions
        self.task, self.values = regions.to_plain(), len(regions) + 1

    def kind_warning(self, logits: Tensor, kind: Kind) -> str:
        return ""

    def padding(self, values: np.ndarray, mask: np.ndarray | None, kind: Kind) -> Padding | None:
        return None

    def logits(self, raw: object, kind: Kind, name: str) -> Tensor:
        return region_logits(raw, kind, name, len(self._regions))

    def pool(
        self, members: Iterable[Tensor], hows: Sequence[str], disagreement: bool
    ) -> tuple[list[Tensor], Tensor | None]:
        return pool_regions(members, hows, disagreement)

    def mask_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return shape

    def mask(self, logits: Tensor) -> Tensor:
        return logits > 0

    def probabilities(self, scores: Tensor) -> Tensor:
        return torch.sigmoid(scores)

    def log_probs(self, scores: Tensor) -> Tensor:
        return scores

    def confidence(self, log_probs: Tensor) -> Tensor:
        return log_probs.abs().amin(0).sigmoid()

    def changed(self, scores: Tensor, mask: Tensor) -> Tensor:
        return ((scores > 0) != mask).any(0)

    def structures(self, count: int, background: bool) -> range:
        return range(count)

    def each(self, mask: Tensor, structures: range) -> Tensor:
        return mask

    def shown_as(self, structures: range) -> Sequence[int]:
        return self._regions.order

    def truth(self, labels: Tensor, number: int) -> Tensor:
        return self._regions.truth(labels, number)

    def stored_mask(self, values: np.ndarray, kind: Kind) -> np.ndarray:
        return values > self._limit(kind)

    def targets(self, labels: Tensor) -> Tensor:
        return self._regions.truths(labels) == 1

    def right(self, mask: Tensor, targets: Tensor) -> Tensor:
        return (mask == targets).all(0)

    def counts(self, mask: Tensor, where: Tensor | None) -> tuple[int, ...]:
        return tuple(int(each.sum()) for each in (mask if where is None else mask & where))

    def map(self, mask: Tensor) -> Tensor:
        return self._regions.last_on(mask)

    def label_map(self, mask: Tensor) -> Tensor:
        return self._regions.label_map(mask)

    def true_map(self, labels: Tensor | None) -> Tensor | None:
        return self._regions.last_true(labels)

    def may_become(self, kind: Kind, came: Kind) -> bool:
        return kind != "probs" or came != "sigmoid"

    def keeps_padding(self, kind: Kind, came: Kind) -> bool:
        return kind == came

    def encode(self, scores: Tensor, kind: Kind, dtype: np.dtype[Any]) -> np.ndarray:
        exact = scores.detach().cpu().double()
        limit = np.finfo(dtype).max
        return np.array((exact.sigmoid() if kind == "sigmoid" else exact.clamp(-limit, limit)).numpy(), dtype)

    def keep(self, values: np.ndarray, mask: np.ndarray, inside: np.ndarray | None, kind: Kind, name: str) -> None:
        keep_side(values, mask, self._limit(kind), name)

    @staticmethod
    def _limit(kind: Kind) -> float:
        return 0.5 if kind == "sigmoid" else 0.0


MaskDecision: TypeAlias = _Classes | _Regions


def decision_of(regions: Regions | None, num_classes: int | None = None) -> MaskDecision:
    """Return the decision of a model: that of its regions, or of its classes."""
    return _Classes(num_classes) if regions is None else _Regions(regions)
