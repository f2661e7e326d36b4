"""Calibrators that are made of others: they see what these see, and promise no more than all of these do."""

from collections.abc import Sequence
from typing import Any

from torch import nn

from segcal.calibrators.base import Calibrator, Evidence


class Holder(Calibrator):
    """A calibrator that holds others.

    Attributes:
        inner: the other, or a list of others; None for none.
    """

    inner: nn.Module | None

    def __init__(self, num_classes: int, held: Sequence[Calibrator], **options: Any) -> None:
        super().__init__(num_classes, **options)
        self.translation_invariant = all(each.translation_invariant for each in held)
        self.pointwise = all(each.pointwise for each in held)
        self.sees_members = any(each.sees_members for each in held)
        self.sees_image = any(each.sees_image for each in held)

    @property
    def held(self) -> list[Calibrator]:
        """The calibrators that it is made of."""
        found = self.inner if isinstance(self.inner, nn.ModuleList) else [self.inner]
        return [each for each in found if isinstance(each, Calibrator)]

    @property
    def surroundings(self) -> str:
        """What the calibrators see beside the voxel, in words."""
        return "; ".join(dict.fromkeys(each.surroundings for each in self.held if not each.pointwise))

    def reach(self, axes: int) -> tuple[int, ...] | None:
        """Return how far the calibrator sees that sees farthest."""
        found = [(0,) * axes, *(each.reach(axes) for each in self.held)]
        known = [each for each in found if each is not None]
        return tuple(map(max, zip(*known, strict=True))) if len(known) == len(found) else None

    def evidence(self) -> dict[str, Evidence]:
        """Return what is weakest of what the promises of the calibrators rest on."""
        found: dict[str, Evidence] = {}
        for each in self.held:
            for promise, own in each.evidence().items():
                if promise not in found or own.violation > found[promise].violation:
                    found[promise] = own
        return found
