r"""Dice on validation cases, by which the best weights are chosen.

For each case, the mean over classes of :math:`2 TP / (2 TP + FP + FN)`, leaving out classes that are neither in the
labels nor predicted, and the background unless it counts; then the mean over cases. Voxels with the label
`ignore_index` do not count.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from segcal.errors import InputError
from segcal.numerics import winner
from segcal.types import IGNORED, Labels, Logits


@torch.no_grad()
def validation_dice(
    network: nn.Module,
    cases: Iterable[Sequence[Tensor]],
    device: str,
    include_background: bool = False,
    ignore_index: int = IGNORED,
) -> float:
    """Return the mean Dice of a network over cases (image, labels), or NaN if it is defined for none."""
    training = network.training
    network.eval()
    values = [
        case_dice(network(image[None].to(device))[0], labels.to(device), include_background, ignore_index)
        for image, labels, *_ in cases
    ]
    network.train(training)
    return float(torch.stack(values).nanmean())


def case_dice(logits: Logits, labels: Labels, include_background: bool = False, ignore_index: int = IGNORED) -> Tensor:
    """Return the mean Dice of one case, logits ``(classes, *space)``; NaN if no class is there at all."""
    valid = labels != ignore_index
    strange = labels[valid & ((labels < 0) | (labels >= len(logits)))]
    if len(strange):
        raise InputError(
            f"labels contains {int(strange[0])}, but there are classes 0 to {len(logits) - 1} and ignore_index = "
            f"{ignore_index}. Set ignore_index={int(strange[0])} if this label is to be ignored."
        )
    predicted = winner(logits, axis=0)
    scores = []
    for number in range(0 if include_background else 1, len(logits)):
        mine, true = (predicted == number) & valid, (labels == number) & valid
        scores.append(2 * (mine & true).sum() / (mine.sum() + true.sum()))
    return torch.stack(scores).nanmean()
