r"""Likelihood of scores that are looked up in curves, in torch, for devices other than the CPU.

The curves of :mod:`segcal.kernels.conic_numba` as sums of pieces: with the steps between values at nodes,

.. math:: \mathrm{row}(x) = r_0 + \sum_m (r_{m+1} - r_m)\,\mathrm{clamp}(x - m, 0, 1),

the last piece open. Nothing is looked up, and nothing added in place: the result is the same every time.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from segcal.numerics import at_once

STEP_VALUES = 1 << 19


def likelihood(
    positions: Tensor, target: Tensor, weight: Tensor, rows: Tensor, classes: int, hats: Sequence[int]
) -> tuple[float, Tensor]:
    """Return the summed NLL and its gradient in `rows`; the arguments are those of the loops."""
    steps = torch.cat([rows[:, :1], rows.diff(dim=1)], dim=1).to(positions.device)
    shared, own = steps.tensor_split([1 + sum(hats)])
    total, gradient = steps.new_zeros(()), torch.zeros_like(steps)
    of_shared, of_own = gradient.tensor_split([len(shared)])
    size = at_once(STEP_VALUES, len(positions), positions.device)
    for start in range(0, positions.shape[1], size):
        part = slice(start, start + size)
        where, around = positions[:, part].double().tensor_split([classes])
        share, first = _shares(around, hats), (where < 0).double()
        scores = torch.zeros_like(where)
        for m, slope in enumerate(shared.T @ share):
            if len(own) == classes:
                slope = slope + own[:, m, None]
            elif len(own):
                slope = slope + own[:, m].reshape(classes, classes).T @ first
            scores -= slope * _piece(where, m, rows.shape[1])
        log_probs = scores.log_softmax(0)
        each, label = weight[part].double(), target[None, part].long()
        total -= (each * log_probs.gather(0, label)[0]).sum()
        residual = log_probs.exp_()
        residual.scatter_add_(0, label, -torch.ones_like(residual[:1]))
        residual *= each
        for m in range(rows.shape[1]):
            push = residual * _piece(where, m, rows.shape[1])
            of_shared[:, m] -= share @ push.sum(0)
            if len(own) == classes:
                of_own[:, m] -= push.sum(1)
            elif len(own):
                of_own[:, m] -= (first @ push.T).reshape(-1)
    gradient[:, :-1] -= gradient[:, 1:].clone()
    return float(total), gradient.cpu()


def _piece(where: Tensor, number: int, nodes: int) -> Tensor:
    """Return how much of the step to a node is behind each position; nothing for a winner."""
    if number == 0:
        return (where >= 0).double()
    return (where - (number - 1)).clamp(0, 1 if number < nodes - 1 else None)


def _shares(around: Tensor, hats: Sequence[int]) -> Tensor:
    """Return the shares of rows that all classes have: all of the first, and those of the hats of each context."""
    found = [around.new_ones(1, around.shape[1])]
    for place, count in zip(around, hats, strict=True):
        number = torch.arange(count, device=around.device)[:, None]
        found.append((1 - (place - number).abs()).clamp(min=0))
    return torch.cat(found)
