"""Training losses, and the list of them."""

import inspect
from collections.abc import Callable

from segcal.arguments import typed
from segcal.checks import check_choice
from segcal.errors import InputError
from segcal.losses.base import Loss
from segcal.losses.ce import ConfidencePenalty, CrossEntropy, Focal, LabelSmoothing, MarginLabelSmoothing
from segcal.losses.dice import CrossEntropyDice, Dice, HardL1ACE, SoftL1ACE
from segcal.losses.spatial import NeighbourAware, SpatialLabelSmoothing

LOSSES: dict[str, Callable[..., Loss]] = {
    "ce": CrossEntropy,
    "dice": Dice,
    "ce_dice": CrossEntropyDice,
    "focal": Focal,
    "ecp": ConfidencePenalty,
    "label_smoothing": LabelSmoothing,
    "svls": SpatialLabelSmoothing,
    "mbls": MarginLabelSmoothing,
    "nacl": NeighbourAware,
    "ml1_ace": HardL1ACE,
    "ml1_ace_soft": SoftL1ACE,
}


@typed
def make_loss(name: str, **options: object) -> Loss:
    """Return the loss of this name.

    >>> make_loss("ce_dice", dice_weight=0.5).dice_weight
    0.5
    """
    check_choice(name, "loss", LOSSES)
    known = list(inspect.signature(LOSSES[name]).parameters)
    unknown = next((key for key in options if key not in known), None)
    if unknown is not None:
        raise InputError(f"{name} has no option {unknown!r}. Choose from: {', '.join(known)}.")
    return LOSSES[name](**options)
