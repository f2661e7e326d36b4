r"""Rules: ways from calibrated probabilities to masks, one threshold per structure.

**Recall**: a mask that misses at most a stated share of its structure, on average; conformal risk control. Of a
labelled case with the structure, the mask :math:`\{p \ge t\}` misses the share
:math:`\ell(t) = \#\{y = 1, p < t\} / \#\{y = 1\}`, which does not grow as t falls. With its mean :math:`\bar\ell(t)`
over K groups (or single cases) that have the structure, t is the largest threshold with

.. math:: \frac{K \bar\ell(t) + 1}{K + 1} \le 1 - R .

If the labelled groups were not used in the fit, the next group misses at most 1 - R on average (Angelopoulos et al.,
2024). Nothing is promised for a single case. The labelled cases are those that ``segcal fit`` keeps for ``segcal
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
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

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


@dataclass(frozen=True)
class Rule:
    """A rule, and `about` it in words; as it is, it keeps the preserved mask.

    `of_case` looks at the probabilities of one structure of a whole case and returns its threshold (infinite: an empty
    mask). A rule with a `promise`, in words, is learned on labelled cases: it has a `value`, what is asked of it. Its
    thresholds are known before any case is read, and its masks may overlap, because it promises something of each
    structure by itself. It bounds the curve `losses` of :class:`segcal.fitting.reference.LossCurves`.
    """

    name: str
    about: str
    of_case: Callable[[Ranked], float] | None = None
    promise: str = ""
    losses: Literal["missed", "wrong"] = "missed"
    value: float | None = None

    def __str__(self) -> str:
        return self.name if self.value is None else f"{self.name}={self.value:g}"

    def limits(self, reference: Reference) -> list[Limit]:
        """Return what labelled cases support for each class; refuse what they support for none."""
        assert self.value is not None
        draws, needed = count_draws([each.group for each in reference.cases]), draws_needed(self.value)
        check_share(1 - self.value, draws)
        found = []
        for curves in reference.curves:
            # Every group has a mask that may be wrong, and only those with the structure have one that may miss it. The
            # lowest threshold at which little is wrong is looked for, and the highest at which little is missed.
            wrong = self.losses == "wrong"
            count, order = (draws, slice(None)) if wrong else (curves.present, slice(None, None, -1))
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


def as_large_as_expected(ranked: Ranked) -> float:
    """Return the threshold of the mask whose size is nearest to the sum of the probabilities."""
    return ranked.threshold(int(ranked.sizes[np.argmin(np.abs(ranked.sizes - ranked.total))]))
