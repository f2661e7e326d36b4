r"""The winner's lead: what keeps a decision alive when probabilities become almost equal.

With a temperature of 1e10 all probabilities of a voxel round to the same number, and the lowest class index would win.
A lead of a few units in the last place of the type at hand survives the normalisation and changes no probability
measurably. It is 1e-6 in float32 and 2e-15 in float64. It is given in two places:

- :func:`with_lead` to the scores of a calibrator that makes classes equal on purpose;
- :func:`with_winner` to the log-probabilities of every calibrator that keeps the decision. Scores that differ by one
  unit in the last place become equal when they are scaled and normalised. Where ``argmax`` of the result would then
  name another class than ``argmax`` of the input, all other classes that stand higher are lowered to

  .. math:: \log q_w\,(1 + 8 \epsilon) < \log q_w ,

  one limit for all of them, so that no two of them change places. Other voxels are not touched. A class that is above
  the old winner by more than rounding is left there: a broken promise is not hidden.
"""

import torch
from torch import Tensor

from segcal.numerics import winner

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


def with_winner(log_probs: Tensor, logits: Tensor) -> Tensor:
    """Return log-probabilities whose first maximum is that of the logits, where only rounding made it another.

    Args:
        log_probs: ``(batch, classes, *space)``.
        logits: what they were made of, in the same shape.

    >>> with_winner(torch.full((1, 2), -0.6931472), torch.tensor([[1.0, 1.0000001]])).argmax(1)
    tensor([1])
    """
    if torch.compiler.is_compiling():  # shapes must not depend on values: every voxel is looked at
        return log_probs + _correction(log_probs, logits)
    largest = log_probs == log_probs.amax(dim=1, keepdim=True)
    if int(largest.count_nonzero()) * log_probs.shape[1] == log_probs.numel():
        return log_probs  # one class is largest, and rounding is monotone: it is the old winner
    tied = largest.sum(dim=1) > 1
    correction = torch.zeros_like(log_probs)
    rows = (values.detach().movedim(1, -1)[tied] for values in (log_probs, logits))
    correction.movedim(1, -1)[tied] = _correction(*rows)
    return log_probs + correction


def _correction(log_probs: Tensor, logits: Tensor) -> Tensor:
    """Return what is to be added; the sum is exact, since lowered scores are neighbours of their limit."""
    log_probs, index = log_probs.detach(), winner(logits).unsqueeze(1)
    own = log_probs.gather(1, index)
    # A division by a large number: exporters take a factor near 1 for 1, and a term near 0 for 0.
    lead = own / (1 / (UNITS * torch.finfo(log_probs.dtype).eps))
    lost = (winner(log_probs).unsqueeze(1) != index) & (log_probs.amax(dim=1, keepdim=True) <= own - lead)
    lowered = torch.minimum(log_probs, own + lead).scatter(1, index, own)
    return torch.where(lost, lowered - log_probs, 0.0)
