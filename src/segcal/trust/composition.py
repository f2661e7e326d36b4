r"""How far cases are from all others by their composition, the class frequencies that the model predicts in them.

The distance of two compositions is that of :math:`\sqrt{f}` (Hellinger's, as of the clusters of
:mod:`segcal.fitting.division`). The score of a draw is its distance from the k-th nearest other, with k a quarter of
the reference, or five: what a quarter of the draws have in common is a cluster of its own, and a few new draws of one
kind do not hide each other. Whichever draw is the new one, the scores are the same, so their ranks are p-values
(:mod:`segcal.trust.atypical`). Draws of one group are no neighbours of each other.
"""

import numpy as np

from segcal.trust.table import Floats

# Of few draws so many are neighbours: the first new draws of one kind must not hide each other.
FEWEST = 5
# Beyond these digits distances differ by their arithmetic.
DIGITS = 9


class Compositions:
    """Class frequencies of draws, to which others are added one after the other."""

    def __init__(self, rows: Floats, groups: tuple[str, ...] | None = None) -> None:
        """Take the reference: frequencies ``(draws, classes)``, and the group of each; its own if not given."""
        self._near = max(1, min(len(rows) - 1, max(FEWEST, len(rows) // 4)))
        self._points, self._nearest = np.zeros((0, rows.shape[1])), np.zeros((0, self._near))
        self._groups: list[str | None] = []
        for place, row in enumerate(rows):
            self.scores(row, None if groups is None else groups[place], keep=True)

    def scores(self, row: Floats, group: str | None = None, keep: bool = False) -> Floats:
        """Return the scores of all draws with a new one, which is the last; `keep` it among them."""
        point = np.sqrt(row / row.sum())
        off = np.round(np.sqrt(((self._points - point) ** 2).sum(1)), DIGITS)
        if group is not None:
            off[[own == group for own in self._groups]] = np.inf
        last = np.sort(np.append(off, np.full(self._near, np.inf)))[: self._near]
        others = np.partition(np.column_stack([self._nearest, off]), self._near - 1)[:, : self._near]
        nearest = np.vstack([others, last])
        if keep:
            self._points, self._nearest = np.vstack([self._points, point]), nearest
            self._groups.append(group)
        found: Floats = nearest.max(1)
        return found
