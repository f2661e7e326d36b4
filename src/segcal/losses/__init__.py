"""Training losses: one per file, and the list of them."""

import inspect
from collections.abc import Callable

from segcal.arguments import typed
from segcal.checks import check_choice
from segcal.errors import InputError
from segcal.losses.base import Loss
from segcal.losses.ce import CrossEntropy
from segcal.losses.ce_dice import CrossEntropyDice
from segcal.losses.dice import Dice
from segcal.losses.ecp import ConfidencePenalty
from segcal.losses.focal import Focal
from segcal.losses.l1_ace import HardL1ACE, SoftL1ACE
from segcal.losses.label_smoothing import LabelSmoothing
from segcal.losses.mbls import MarginLabelSmoothing
from segcal.losses.nacl import NeighbourAware
from segcal.losses.svls import SpatialLabelSmoothing

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


__all__ = [
    "LOSSES",
    "ConfidencePenalty",
    "CrossEntropy",
    "CrossEntropyDice",
    "Dice",
    "Focal",
    "HardL1ACE",
    "LabelSmoothing",
    "Loss",
    "MarginLabelSmoothing",
    "NeighbourAware",
    "SoftL1ACE",
    "SpatialLabelSmoothing",
    "make_loss",
]
