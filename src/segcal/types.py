"""The tensors that travel through the package, and the one axis rule: classes are axis 1.

All are plain :class:`torch.Tensor`; the names say what the numbers mean, so that no function
has to guess it from values.

- ``Logits``: ``(batch, classes, *space)``, real-valued scores before the softmax, finite.
- ``LogProbs``: the same shape; ``logsumexp`` over axis 1 is zero.
- ``Labels``: ``(batch, *space)``, int64 class indices; :data:`IGNORED` marks voxels that do not count.

``space`` is any number of axes, including none: ``(voxels, classes)`` is a batch of voxels.
A single case has no batch axis: ``(classes, *space)`` and ``(*space)``.
"""

from typing import Literal, NamedTuple, TypeAlias

from torch import Tensor

Logits: TypeAlias = Tensor
LogProbs: TypeAlias = Tensor
Labels: TypeAlias = Tensor

Kind: TypeAlias = Literal["logits", "probs", "sigmoid"]
Preserves: TypeAlias = Literal["argmax", "order"] | None


class Context(NamedTuple):
    """What a voxel may see beside its pooled logits; None for what is not known.

    Attributes:
        image: ``(batch, channels, *space)``.
        disagreement: ``(batch, *space)``: how much the members of an ensemble disagree, of :mod:`segcal.pooling`.
    """

    image: Tensor | None = None
    disagreement: Tensor | None = None


# The label of a voxel that does not count: the user's ignore label, or outside the valid mask.
IGNORED = -1
