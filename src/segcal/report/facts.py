"""The numbers that a verdict is written from, whether one evaluation or a benchmark measured them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from segcal.errors import InputError
from segcal.statistics.reliability import Curve
from segcal.summary import Difference

# Less than this between confidence and accuracy is not worth a word: 0.1 points.
NEGLIGIBLE = 0.001
COMPARED = ("nll", "ece", "ba_ece", "dice")
Effect = Literal["better", "worse", "same"]


@dataclass(frozen=True)
class Honesty:
    """Mean confidence and accuracy of some voxels."""

    confidence: float
    accuracy: float

    @classmethod
    def of(cls, curve: Curve) -> "Honesty":
        """Return those of the voxels of a reliability curve."""
        voxels = int(curve.count.sum())
        if not voxels:
            raise InputError("the cases have no voxel that counts, but a page needs some. Check --ignore.")
        return cls(float(curve.confidence.sum()) / voxels, int(curve.right.sum()) / voxels)

    @property
    def judged(self) -> str:
        """How far the two are apart, as "overconfident by 3.1 points"; "" if they agree."""
        gap = self.confidence - self.accuracy
        word = "overconfident" if gap > 0 else "underconfident"
        return "" if abs(gap) < NEGLIGIBLE else f"{word} by {100 * abs(gap):.1f} points"


@dataclass(frozen=True)
class Change:
    """A metric before and after, and the paired difference."""

    before: float | None
    after: float | None
    difference: Difference

    def effect(self, better: Literal["lower", "higher"] = "lower") -> Effect:
        """Return "better" or "worse" if the whole interval lies on one side of zero, and else "same"."""
        gap = self.difference
        if gap.low is None or gap.high is None or gap.low <= 0 <= gap.high:
            return "same"
        return "better" if (gap.high < 0) == (better == "lower") else "worse"


@dataclass(frozen=True)
class FlipCount:
    """Harmful, beneficial and neutral flips, of so many voxels, and the share of them near a boundary (3 voxels)."""

    voxels: int
    flips: tuple[int, int, int]
    near: float | None = None

    @property
    def total(self) -> int:
        """All flips."""
        return sum(self.flips)


class PartCounts(msgspec.Struct, frozen=True, omit_defaults=True):
    """How many cases had which part, in how many repeats; `seen` of the tested ones had a part in the fit.

    In a benchmark none has, and it is None.
    """

    cal: int
    val: int
    test: int
    repeats: int
    seen: int | None = None


@dataclass(frozen=True)
class Facts:
    """The findings about one calibrator on one task.

    Attributes:
        task: where it was tested.
        calibrator: its name; "identity" if nothing better was found. Outside of code it is called `title`.
        keeps: whether it promises to keep the mask.
        everywhere: all voxels; `boundary` those less than 3 voxels from a boundary of the labels.
        change: by metric, from uncalibrated to calibrated.
        offset: mean over cases of the standard deviation of the free energy.
        ace: before and after, mean over repeats.
        matrix_flips: those of matrix scaling, and `matrix_change` its changes; None and empty if it was not fitted.
    """

    task: str
    calibrator: str
    title: str
    keeps: bool
    everywhere: Honesty
    change: Mapping[str, Change]
    flips: FlipCount
    everywhere_after: Honesty | None = None
    boundary: Honesty | None = None
    boundary_after: Honesty | None = None
    offset: float | None = None
    ace: tuple[float | None, float | None] = (None, None)
    matrix_flips: FlipCount | None = None
    matrix_change: Mapping[str, Change] = field(default_factory=dict)
