"""Tensor types of the package, and the one axis rule: classes are axis 1.

All are plain :class:`torch.Tensor`; the names say what the numbers mean, so that no function
has to guess it from values.

- ``Logits``: ``(batch, classes, *space)``, real-valued scores before the softmax, finite.
- ``LogProbs``: the same shape; ``logsumexp`` over axis 1 is zero.
- ``Labels``: ``(batch, *space)``, int64 class indices; :data:`IGNORED` marks voxels that do not count.

``space`` is any number of axes, including none: ``(voxels, classes)`` is a batch of voxels.
A single case has no batch axis: ``(classes, *space)`` and ``(*space)``.
"""

from typing import Literal, NamedTuple, TypeAlias

from torch import Tensor, device

Logits: TypeAlias = Tensor
LogProbs: TypeAlias = Tensor
Labels: TypeAlias = Tensor

Kind: TypeAlias = Literal["logits", "probs", "sigmoid"]
Preserves: TypeAlias = Literal["argmax", "order"] | None


class Context(NamedTuple):
    """Inputs of a voxel beside its pooled logits; None for those that are not known.

    Attributes:
        image: ``(batch, channels, *space)``.
        disagreement: ``(batch, *space)``: how much the members of an ensemble disagree, of :mod:`segcal.pooling`.
        valid: ``(batch, *space)`` bool, False where nothing was predicted.
        mean_gap: ``(batch,)``: what :mod:`segcal.calibrators.neighbourhood` knows of the whole image, for a part of it.
    """

    image: Tensor | None = None
    disagreement: Tensor | None = None
    valid: Tensor | None = None
    mean_gap: Tensor | None = None

    def narrow(self, axis: int, start: int, length: int) -> "Context":
        """Return a slab along an axis of space, counted from the last; what is known of the whole image stays."""
        image, disagreement, valid = (each if each is None else each.narrow(axis, start, length) for each in self[:3])
        return Context(image, disagreement, valid, self.mean_gap)

    def to(self, device: device | None) -> "Context":
        """Return the same on a device."""
        return Context(*(None if each is None else each.to(device) for each in self))


# The label of a voxel that does not count: the user's ignore label, or outside the valid mask.
IGNORED = -1
