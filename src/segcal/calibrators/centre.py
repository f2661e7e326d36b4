r"""Features with a large offset: :math:`W x + b = W (x - m) + (b + W m)`.

Scores of features near 1e4 are rounded to 1e-12, each voxel's in its own way, and a likelihood with this noise hides
the last steps to its optimum. With the centre :math:`m` taken out of the features, what is rounded is one number per
output, the same for all voxels. The variables stay (W, b), with their bounds and penalties: only passes over the voxels
see the others. With :math:`A` for :math:`(x, 1) = A\,(x - m, 1)`, gradients come back as :math:`g A^\top` and Hessians
as :math:`A H A^\top`.

Features are moved only where their mean is large beside their spread; there the subtraction is exact.
"""

import torch
from torch import Tensor

LARGE = 16.0


def find_centre(weight: float, sums: Tensor, squares: Tensor, dtype: torch.dtype) -> Tensor | None:
    """Return the centre ``(F,)`` of features with these weighted sums and sums of squares; None where none is large.

    It is float64, but its numbers are of the features' own type.
    """
    mean = sums / weight
    spread = (squares / weight - mean.square()).clamp(min=0).sqrt()
    large = mean.abs() > LARGE * spread.clamp(min=1.0)
    return torch.where(large, mean.to(dtype).double(), 0.0) if bool(large.any()) else None


def take_out(features: Tensor, centre: Tensor | None) -> Tensor:
    """Return features ``(F, n)`` about the centre, in their own type."""
    if centre is None:
        return features
    return (features.double() - centre.to(features.device)[:, None]).to(features.dtype)


def inward(theta: Tensor, centre: Tensor | None) -> Tensor:
    """Return ``(W, b + W m)`` of ``(K, F + 1)``."""
    if centre is None:
        return theta
    moved = theta.clone()
    moved[:, -1] += theta[:, :-1] @ centre.to(theta.device)
    return moved


def outward(gradient: Tensor, centre: Tensor | None) -> Tensor:
    """Return the gradient ``(..., F + 1)`` in (W, b) of one in the moved variables."""
    if centre is None:
        return gradient
    centre = centre.to(gradient.device)
    return torch.cat([gradient[..., :-1] + gradient[..., -1:] * centre, gradient[..., -1:]], dim=-1)
