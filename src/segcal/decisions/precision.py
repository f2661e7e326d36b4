r"""A mask of which at most a stated share is something else, on average: conformal risk control, made monotone.

Of a labelled case, the share :math:`w(t) = \#\{y = 0, p \ge t\} / \#\{p \ge t\}` of the mask :math:`\{p \ge t\}` is
wrong, 0 for an empty mask. It may grow with t, so that it is replaced by :math:`\ell(t) = \max_{s \ge t} w(s)` over the
thresholds of the grid, case by case, which does not. With its mean over K draws, t is the smallest threshold with

.. math:: \frac{K \bar\ell(t) + 1}{K + 1} \le 1 - P .

Then at most 1 - P of the mask of the next draw is wrong on average, because :math:`w \le \ell`; under the conditions
of :mod:`segcal.decisions.recall`. The bound is on :math:`\ell`, so that masks are a little smaller than they need to
be. Other than the inner mask of ``segcal trust``, the mask may be larger than the preserved one.
"""

from segcal.decisions.base import Rule


class Precision(Rule):
    """The largest threshold mask whose false-discovery share is bounded."""

    name = "precision"
    about = "the largest mask of which at most 1 - P is wrong, on average over cases"
    promise = "at least {:g} % of a mask is its structure; an empty mask counts as right"
    losses = "wrong"
    falling = True
