r"""A mask that misses at most a stated share of its structure, on average: conformal risk control.

Of a labelled case with the structure, the mask :math:`\{p \ge t\}` misses the share
:math:`\ell(t) = \#\{y = 1, p < t\} / \#\{y = 1\}`, which does not grow as t falls. With its mean :math:`\bar\ell(t)`
over K draws (groups, or cases of none) that have the structure, t is the largest threshold with

.. math:: \frac{K \bar\ell(t) + 1}{K + 1} \le 1 - R .

Then the next draw misses at most 1 - R on average (Angelopoulos et al., 2024), if the labelled draws had no part in
the fit; nothing is promised for a single case. The labelled cases are those that ``segcal fit`` keeps for ``segcal
trust`` (:class:`segcal.fitting.reference.LossCurves`); other than the outer mask there, t may lie above 0.5.
"""

from segcal.decisions.base import Rule


class Recall(Rule):
    """The smallest threshold mask whose false-negative share is bounded."""

    name = "recall"
    about = "the smallest mask that misses at most 1 - R of its structure, on average over cases"
    promise = "a mask holds at least {:g} % of its structure, where that is there"
    losses = "missed"
