"""The winner's lead: what keeps a decision alive when probabilities become almost equal.

With a temperature of 1e10 all probabilities of a voxel round to the same number, and the lowest class index would win.
A lead of a few units in the last place of the type at hand survives the normalisation and changes no probability that
anybody could measure: 1e-6 in float32, 2e-15 in float64.
"""

import torch
from torch import Tensor

# In units of the type's rounding. Log-probabilities of C equal classes are -log C, with a rounding of up to
# 4 units for 20 to 3000 classes; twice that stays visible.
UNITS = 8


def with_lead(scores: Tensor, first: Tensor) -> Tensor:
    """Return scores in which the winner stands visibly above all other classes.

    Args:
        scores: ``(batch, classes, *space)``, with no class above the winner.
        first: ``(batch, *space)``, the winner of each voxel.

    >>> with_lead(torch.zeros(1, 3, dtype=torch.float64), torch.tensor([1])).argmax(1)
    tensor([1])
    """
    index = first.unsqueeze(1)
    top = scores.gather(1, index)
    lowered = torch.minimum(scores, top - UNITS * torch.finfo(scores.dtype).eps)
    return lowered.scatter(1, index, top)
