"""Knots of piecewise linear functions: where they are put, and where values stand between them."""

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

# Values behind a quantile.
MOST_VALUES = 1 << 20


def some_voxels(voxels: Iterable[tuple[Tensor, Tensor | None]]) -> tuple[Tensor, Tensor]:
    """Return logits and contexts of every n-th voxel, such that they take little room, in float64."""
    step, kept, size = 1, list[tuple[Tensor, Tensor]](), 0
    for logits, context in voxels:
        around = logits[:0] if context is None else context
        kept.append((logits[:, ::step], around[:, ::step]))
        size += kept[-1][0].numel()
        while size > MOST_VALUES:
            step, size = 2 * step, size // 2
            kept = [(one[:, ::2], other[:, ::2]) for one, other in kept]
        kept[-1] = kept[-1][0].double().cpu(), kept[-1][1].double().cpu()  # of the voxels themselves nothing stays
    one, other = (torch.cat(parts, dim=1) for parts in zip(*kept, strict=True))
    return one, other


def quantile_knots(values: Tensor, shares: Sequence[float], above: float) -> Tensor:
    """Return quantiles of values, each visibly larger than the one before, the first than `above`.

    >>> quantile_knots(torch.tensor([0.0, 1.0, 1.0, 1.0]), [0.0, 0.5, 1.0], -1.0)
    tensor([0.0000, 1.0000, 1.0010], dtype=torch.float64)
    """
    found = np.quantile(values.numpy() if len(values) else np.zeros(1), shares)
    spread: list[float] = []
    for value in found:
        spread.append(max(float(value), (spread[-1] if spread else above) + 1e-3))
    return torch.tensor(spread, dtype=torch.float64)


def positions(values: Tensor, knots: Tensor) -> Tensor:
    """Return knot number plus the share of the way to the next; beyond the last knot, plus the distance.

    >>> positions(torch.tensor([0.5, 3.0, 9.0]), torch.tensor([0.0, 1.0, 5.0]))
    tensor([0.5000, 1.5000, 6.0000])
    """
    left = torch.searchsorted(knots, values.contiguous(), right=True).clamp(1, len(knots)) - 1
    widths = torch.cat([knots.diff(), knots.new_ones(1)])
    return left + (values - knots[left]) / widths[left]


def hat_shares(where: Tensor, count: int) -> Tensor:
    """Return the share of each node in values at these positions, ``(count, *where)``; linear beyond the last.

    >>> hat_shares(torch.tensor([0.5, 2.0]), 3)
    tensor([[0.5000, 0.0000],
            [0.5000, 0.0000],
            [0.0000, 1.0000]])
    """
    left = where.floor().clamp(0, count - 2)
    rest = where - left
    number = torch.arange(count, device=where.device).reshape(-1, *[1] * where.ndim)
    return (number == left) * (1 - rest) + (number == left + 1) * rest
