r"""Likelihoods of affine scores and of a temperature, with their derivatives: the reference, in torch, for any device.

For voxels with features x, target position t and weight w, scores :math:`s = \mathrm{outputs}(W x + b)` and
:math:`p = S(s)`, one call returns

.. math:: \sum w\,(\log\textstyle\sum_k e^{s_k} - s_t), \qquad \sum w\,J^\top (p - e_t)\,(x, 1)^\top,

where J is the constant Jacobian of `outputs`: the identity, minus the identity without the winner ("drops"), or
minus the running sum ("stacked_drops"). All in float64, whatever the features are stored in.

Of temperature scaling, with gaps :math:`g_c = z_c - \max_k z_k` and :math:`E[\cdot]` the mean under
:math:`S(\beta z)`, it is the sums of

.. math::
    f = \log\textstyle\sum_c e^{\beta g_c} - \beta g_y, \qquad
    f' = E[g] - g_y, \qquad f'' = E[g^2] - E[g]^2 .
"""

from collections.abc import Callable

import torch
from torch import Tensor

from segcal.numerics import at_once

# Voxels in one step: the float64 working arrays of a step stay within a few megabytes.
STEP_VALUES = 1 << 19
# Values in one step of a Hessian: bounds its memory whatever the size of the sample.
HESSIAN_VALUES = 1 << 22
# Where accuracy does not matter, smaller ones are zero: products with them would be subnormal, and far slower.
SMALLEST_PROB = 1e-20


def likelihood(features: Tensor, target: Tensor, weight: Tensor, theta: Tensor, outputs: str) -> tuple[float, Tensor]:
    """Return the summed negative log-likelihood and its gradient in `theta`.

    Args:
        features: ``(F, n)``.
        target: ``(n,)`` canonical position of the label.
        weight: ``(n,)``.
        theta: ``(K, F + 1)`` float64, the bias in the last column.
        outputs: what ``W x + b`` is, see :class:`segcal.calibrators.affine.AffineCalibrator`.
    """
    total = torch.zeros((), dtype=torch.float64, device=features.device)
    gradient = torch.zeros_like(theta)
    step = at_once(STEP_VALUES, theta.shape[0] + features.shape[0], features.device)
    for start in range(0, features.shape[1], step):
        part = slice(start, start + step)
        x, t, w = features[:, part].double(), target[part].long(), weight[part].double()
        scores = _scores(theta[:, :-1] @ x + theta[:, -1:], outputs)
        log_probs = scores.log_softmax(0)  # not logsumexp: beside large scores it would round the loss away
        total -= (w * log_probs.gather(0, t[None])[0]).sum()
        residual = log_probs.exp()
        residual.scatter_add_(0, t[None], -torch.ones_like(residual[:1]))
        residual = _pull_back(residual * w, outputs)
        gradient[:, :-1] += residual @ x.T
        gradient[:, -1] += residual.sum(1)
    return float(total), gradient


def probabilities(features: Tensor, theta: Tensor, outputs: str) -> Tensor:
    """Return ``(K, n)``: the probabilities, without the winner for drops, summed from the end for stacked drops."""
    probs = probabilities_of_all(features, theta, outputs)
    return probs if outputs == "scores" else _pull_back(probs, outputs).neg()


def probabilities_of_all(features: Tensor, theta: Tensor, outputs: str) -> Tensor:
    """Return the probabilities of all classes, ``(C, n)``, in float64."""
    return torch.softmax(_scores(theta[:, :-1] @ features.double() + theta[:, -1:], outputs), dim=0)


def _scores(linear: Tensor, outputs: str) -> Tensor:
    if outputs == "scores":
        return linear
    drops = linear if outputs == "drops" else linear.cumsum(0)
    return torch.cat([torch.zeros_like(drops[:1]), -drops])


def _pull_back(residual: Tensor, outputs: str) -> Tensor:
    """Apply the transposed Jacobian of `outputs`."""
    if outputs == "scores":
        return residual
    if outputs == "drops":
        return -residual[1:]
    return -residual[1:].flip(0).cumsum(0).flip(0)


def hessian_operator(features: Tensor, weight: Tensor, theta: Tensor, outputs: str) -> Callable[[Tensor], Tensor]:
    """Return the product with the Hessian as a function; what all products share is computed once.

    Probabilities are computed in float64, products in the type of the features: a step need not be exact.
    """
    probs = probabilities_of_all(features, theta, outputs)
    probs = probs.masked_fill_(probs < SMALLEST_PROB, 0.0).to(features.dtype)
    step = at_once(STEP_VALUES, probs.shape[0] + features.shape[0], features.device)
    parts = [slice(start, start + step) for start in range(0, features.shape[1], step)]

    def multiply(direction: Tensor) -> Tensor:
        own, total = direction.to(features.dtype), torch.zeros_like(direction)
        for part in parts:
            x, p = features[:, part], probs[:, part]
            change = _scores(own[:, :-1] @ x + own[:, -1:], outputs)
            change = p * change
            change -= p * change.sum(0)
            residual = _pull_back(change * weight[part], outputs)
            total[:, :-1] += residual @ x.T
            total[:, -1] += residual.sum(1)
        return total

    return multiply


def hessian_blocks(features: Tensor, weight: Tensor, theta: Tensor, outputs: str) -> Tensor:
    """Return the blocks ``(K, F + 1, F + 1)`` of the Hessian that belong to one output each, to float32 at best."""
    x = torch.cat([features, torch.ones_like(features[:1])])
    probs = probabilities(features, theta, outputs)
    spread = probs * (1 - probs)
    spread = (weight * spread.masked_fill_(spread < SMALLEST_PROB, 0.0)).to(features.dtype)
    return torch.stack([((x * row) @ x.T).double() for row in spread])


def hessian(features: Tensor, weight: Tensor, theta: Tensor, outputs: str) -> Tensor:
    """Return the Hessian of the summed negative log-likelihood in ``theta`` flattened, ``(K (F + 1), K (F + 1))``."""
    rows, columns = theta.shape
    size = rows * columns
    products, own = theta.new_zeros(size, size), theta.new_zeros(size, columns)
    step = at_once(HESSIAN_VALUES, size, features.device)
    for start in range(0, features.shape[1], step):
        part = features[:, start : start + step]
        probs = probabilities(part, theta, outputs)
        x = torch.cat([part.double(), torch.ones_like(part[:1], dtype=torch.float64)])
        spread = (probs[:, None] * x[None]).reshape(size, -1)
        weighted = spread * weight[start : start + step].double()
        products += weighted @ spread.T
        own += weighted @ x.T
    blocks, found = own.reshape(rows, columns, columns), -products.reshape(rows, columns, rows, columns)
    index = torch.arange(rows, device=theta.device)
    if outputs == "stacked_drops":
        later = torch.maximum(index[:, None], index[None])  # two drops act together on all classes below both
        found += blocks[later].permute(0, 2, 1, 3)
    else:
        found[index, :, index, :] += blocks
    return found.reshape(size, size)


def temperature_terms(logits: Tensor, target: Tensor, weight: Tensor, beta: float) -> tuple[float, float, float]:
    """Return the weighted sums of f, f' and f''.

    Args:
        logits: ``(C, n)`` float32 or float64.
        target: ``(n,)`` int32 labels.
        weight: ``(n,)`` of the type of the logits.
        beta: the inverse temperature.
    """
    sums = torch.zeros(3, dtype=torch.float64, device=logits.device)
    step = at_once(STEP_VALUES, logits.shape[0], logits.device)
    for start in range(0, logits.shape[1], step):
        part = slice(start, start + step)
        z, w = logits[:, part].double(), weight[part].double()
        gaps = z - z.amax(0)
        probs = torch.softmax(beta * gaps, dim=0)
        own = gaps.gather(0, target[None, part].long())[0]
        mean = (probs * gaps).sum(0)
        sums[0] += (w * (torch.logsumexp(beta * gaps, 0) - beta * own)).sum()
        sums[1] += (w * (mean - own)).sum()
        sums[2] += (w * ((probs * gaps.square()).sum(0) - mean.square())).sum()
    return float(sums[0]), float(sums[1]), float(sums[2])
