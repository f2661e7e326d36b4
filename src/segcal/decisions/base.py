r"""Rules: ways from calibrated probabilities to masks, one threshold per structure.

**Recall**: a mask that misses at most a stated share of its structure, on average; conformal risk control. Of a
labelled case with the structure, the mask :math:`\{p \ge t\}` misses the share
:math:`\ell(t) = \#\{y = 1, p < t\} / \#\{y = 1\}`, which does not grow as t falls. With its mean :math:`\bar\ell(t)`
over K groups (or single cases) that have the structure, t is the largest threshold with

.. math:: \frac{K \bar\ell(t) + 1}{K + 1} \le 1 - R .

Then the next group misses at most 1 - R on average (Angelopoulos et al., 2024), if the labelled groups were not used in
the fit. Nothing is promised for a single case. The labelled cases are those that ``segcal fit`` keeps for ``segcal
trust`` (:class:`segcal.fitting.reference.LossCurves`); other than the outer mask there, t may lie above 0.5.

**Precision**: a mask of which at most a stated share is something else, on average. Of a labelled case, the share
:math:`w(t) = \#\{y = 0, p \ge t\} / \#\{p \ge t\}` of the mask is wrong, 0 for an empty one. It may grow with t, so
that it is replaced by :math:`\ell(t) = \max_{s \ge t} w(s)` over the thresholds of the grid, case by case, which does
not. With its mean over K groups, t is the smallest threshold that meets the same bound, with P in place of R. At most 1
- P of the mask of the next group is wrong on average, because :math:`w \le \ell`. Masks are a little smaller than they
need to be. Other than the inner mask of ``segcal trust``, the mask may be larger than the preserved one.

**Volume**: the mask as large as its structure is expected to be. Calibrated probabilities say how large that is on
average, :math:`\mu = \sum_v p_v` voxels. Of the masks :math:`\{p \ge t\}`, the empty one among them, that of the size
nearest to :math:`\mu` is taken, of two the smaller. Such volumes are unbiased where each case is calibrated
(Popordanoska et al., MICCAI 2021, for sums of p), other than those of masks at 0.5.

:mod:`segcal.decisions.dice` has the mask with the highest expected Dice.
"""

import math
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from segcal.errors import InputError
from segcal.fitting.reference import Reference, read_numbers
from segcal.trust.conformal import count_draws, draws_needed, first_controlled
from segcal.trust.guarantees import check_share
from segcal.trust.sums import THRESHOLDS

Floats = NDArray[np.float64]


class Ranked(NamedTuple):
    """One structure of a case: its probabilities, descending; and of all voxels, also those next to 0, sums.

    `total` is the sum of p, and `log_none` that of log(1 - p). `present`: the preserved mask has a voxel of it.
    """

    probs: Floats
    total: float
    log_none: float
    present: bool = True

    @property
    def sizes(self) -> NDArray[np.intp]:
        """The sizes of masks, the empty one first: voxels of one probability go together."""
        last = np.append(self.probs[:-1] > self.probs[1:], True)[: len(self.probs)]
        return np.append(0, np.flatnonzero(last) + 1)

    def threshold(self, size: int) -> float:
        """Return the threshold of the mask of a size."""
        return float(self.probs[size - 1]) if size else math.inf


class Limit(NamedTuple):
    """One structure is where its probability is at least the threshold; None: where the preserved mask has it.

    `guaranteed` is the recall or precision that is promised on average, if any, and `note` says why there is none.
    """

    threshold: float | None = None
    guaranteed: float | None = None
    note: str = ""


class Rule:
    """A rule; as it is, it keeps the preserved mask.

    A rule that `ranks` looks at the probabilities of a whole case first. One with a `promise`, in words, is learned on
    labelled cases: it has a `value`, what is asked of it. Its thresholds are known before any case is read; and its
    masks may overlap, because it promises something of each structure by itself. It bounds the curve `losses` of
    :class:`segcal.fitting.reference.LossCurves`, which is `falling` where the lowest threshold is looked for.
    """

    name: ClassVar[str]
    about: ClassVar[str]
    ranks: ClassVar[bool] = False
    promise: ClassVar[str] = ""
    losses: ClassVar[str] = ""
    falling: ClassVar[bool] = False

    def __init__(self, value: float | None = None) -> None:
        if (value is not None) != bool(self.promise) or not (value is None or 0 < value < 1):
            needed = f"a number between 0 and 1, as in {self.name}=0.9," if self.promise else f"{self.name!r} alone"
            given = self.name if value is None else f"{self.name}={value:g}"
            raise InputError(f"rule is {given!r}, but {needed} is needed. Correct the rule.")
        self.value = value

    def __str__(self) -> str:
        return self.name if self.value is None else f"{self.name}={self.value:g}"

    def of_case(self, ranked: Ranked) -> float | None:
        """Return the threshold of one structure of a case; None is the preserved mask, infinity an empty one."""
        return None

    def limits(self, reference: Reference) -> list[Limit]:
        """Return what labelled cases support for each class; refuse what they support for none."""
        assert self.value is not None
        draws, needed = count_draws([each.group for each in reference.cases]), draws_needed(self.value)
        check_share(1 - self.value, draws)
        found = []
        for curves in reference.curves:
            # Every group has a mask that may be wrong, and only those with the structure have one that may miss it.
            count, order = (draws, slice(None)) if self.falling else (curves.present, slice(None, None, -1))
            losses = read_numbers(getattr(curves, self.losses), len(THRESHOLDS)) if curves.present else np.ones(1)
            place = first_controlled(losses[order], count, 1 - self.value)
            why = "no threshold reaches it on labelled cases"
            if curves.present < needed:
                why = f"{curves.present} labelled groups have the structure, and {needed} are needed"
            missing = Limit(note=f"nothing is guaranteed, and the mask is the preserved one: {why}")
            found.append(missing if place is None else Limit(float(THRESHOLDS[order][place]), self.value))
        if all(one.threshold is None for one in found):
            raise InputError(f"rule is '{self}', but labelled cases support it for no structure. Ask for less.")
        return found


class Argmax(Rule):
    """Of classes, the one with the highest score; of a region, whether its logit is above 0. Nothing changes."""

    name = "argmax"
    about = "the preserved mask (the default everywhere)"


class Recall(Rule):
    """The smallest threshold mask whose false-negative share is bounded."""

    name = "recall"
    about = "the smallest mask that misses at most 1 - R of its structure, on average over cases"
    promise = "a mask holds at least {:g} % of its structure, where that is there"
    losses = "missed"


class Precision(Rule):
    """The largest threshold mask whose false-discovery share is bounded."""

    name = "precision"
    about = "the largest mask of which at most 1 - P is wrong, on average over cases"
    promise = "at least {:g} % of a mask is its structure; an empty mask counts as right"
    losses = "wrong"
    falling = True


class Volume(Rule):
    """The threshold at which the size of the mask is the sum of the probabilities."""

    name = "volume"
    about = "the mask as large as its structure is expected to be"
    ranks = True

    def of_case(self, ranked: Ranked) -> float:
        """Return the threshold of the mask whose size is nearest to the expected one."""
        return ranked.threshold(int(ranked.sizes[np.argmin(np.abs(ranked.sizes - ranked.total))]))
