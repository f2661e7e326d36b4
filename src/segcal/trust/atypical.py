r"""Atypicality of a case among others, by statistics that need no labels.

Of every case a row of numbers is made (:func:`statistics_of`). Scores of rows do not depend on their order. Each column
is centred at its median, divided by its median absolute deviation, and clipped. The score of a row is the root of its
mean square. Medians are robust to almost half of the rows being atypical, so that many of these do not make each other
look usual. A new row is put among the reference, and all scores are computed anew. Its p-value is the share of rows
that are at least as far off, itself included. New and reference cases are treated alike, to the last digit. So a
p-value of at most a has a chance of at most a. It holds on average over references, not for each of them, and only if
the reference had no part in the fit.

A row also has a p-value for each of its numbers, by the count of rows with a larger one (:func:`column_p`). A shift of
one number in one direction, the same in all new rows, makes none of them atypical as a whole.

Cases also have a *composition*, the class frequencies that the model predicts in them (:class:`Compositions`). The
distance of two compositions is that of :math:`\sqrt{f}` (Hellinger's, as of the clusters of
:mod:`segcal.fitting.division`). The score of a group is its distance from the k-th nearest other, with k a quarter of
the reference, or five. A quarter of the groups can form a cluster of its own. A few new groups of one kind do not hide
each other. Whichever group is the new one, the scores are the same, so their ranks are p-values too. Cases of one group
are no neighbours of each other.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from segcal.fitting.reference import read_numbers, written_numbers
from segcal.resample import defined_mean
from segcal.trust.conformal import p_value
from segcal.trust.estimates import Floats, SumTable

# Deviations beyond this say no more.
FARTHEST = 20.0
# Numbers are shares or logarithms: what differs by less differs by its arithmetic.
LEAST = 1e-4
# Of few groups so many are neighbours: the first new groups of one kind must not hide each other.
FEWEST = 5
# Beyond these digits distances differ by their arithmetic.
DIGITS = 9


class Statistics(NamedTuple):
    """Rows of numbers, one per group, and what each column is."""

    draws: tuple[str, ...]
    names: tuple[str, ...]
    rows: Floats


def statistics_of(table: SumTable, titles: Sequence[str], together: bool = True) -> Statistics:
    """Return the statistics of a table; cases of one group are one row, their mean.

    `titles` name the classes; with `together` False every case has a row of its own. A number that is not known is NaN.
    Numbers have the six digits that a stream keeps of them: those of the reference and of new cases must be the same.
    """
    voxels = table.voxels[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        per_class = {
            "expected size of": np.log((table.prob + 0.5) / voxels),
            "mask beside expected size of": np.log((table.mask + 0.5) / (table.prob + 0.5)),
            "confidence inside": table.precision,
            "probability outside": table.outside,
            "confidence at the edge of": table.edge_confidence,
            "expected Dice of": table.expected_dice,
            "agreement of members on": table.agreement,
            "uncertainty beside the edge of": np.log((table.spread + 0.5) / (table.edge + 0.5)),
            "edge beside the size of": np.log((table.edge + 0.5) / (table.mask + 0.5)),
            "classes that touch": table.beside,
        }
        alone = {
            "entropy": np.log(table.entropy / table.voxels + 1e-6),
            "mean confidence": table.hit.sum(1) / table.voxels,
            "disagreement of members": np.log(table.disagreement / table.voxels + 1e-6),
        }
    names = [*alone, *(f"{what} {title}" for what in per_class for title in titles)]
    rows = np.concatenate([*(column[:, None] for column in alone.values()), *per_class.values()], 1)
    draws = tuple(dict.fromkeys(table.groups)) if together else table.ids
    if together:
        own = [rows[[group == draw for group in table.groups]] for draw in draws]
        rows = np.array([defined_mean(each, axis=0) for each in own])
    return Statistics(draws, tuple(names), read_numbers(written_numbers(rows), *rows.shape))


def size_columns(classes: int) -> slice:
    """Return where the expected sizes of the classes stand in a row, the logarithms of shares of the voxels."""
    return slice(3, 3 + classes)


def deviations(rows: Floats) -> Floats:
    """Return rows whose columns are centred and scaled, robustly; a number that is not known lies in the middle."""
    known = np.where(np.isnan(rows).all(0), 0.0, rows)
    middle = np.nanmedian(known, axis=0)
    off = known - middle
    scale = 1.4826 * np.nanmedian(np.abs(off), axis=0)
    mean = np.nanmean(np.abs(off), axis=0)
    scale = np.where(scale > LEAST, scale, np.maximum(mean, LEAST))
    return np.clip(np.nan_to_num(off / scale, nan=0.0), -FARTHEST, FARTHEST)


def atypicality(rows: Floats) -> Floats:
    """Return the score of each row: how far off its numbers are, as the root of their mean square."""
    return np.sqrt((deviations(rows) ** 2).mean(1))


def atypical_p(reference: Floats, row: Floats, smooth: float = 1.0) -> float:
    """Return the p-value of a new row among those of the reference.

    `smooth` is the share of ties that count, itself among them. It is 1 for a p-value that is never too small. A
    uniform number makes it uniform when the row is like the others.
    """
    return rank_p(atypicality(np.vstack([reference, row])), smooth)


def rank_p(scores: Floats, smooth: float = 1.0) -> float:
    """Return the p-value of the last score among all of them, of which the largest are atypical."""
    larger, equal = (scores[:-1] > scores[-1]).sum(), (scores == scores[-1]).sum()
    return float((larger + smooth * equal) / len(scores))


def column_p(reference: Floats, row: Floats, smooth: float) -> Floats:
    """Return for each number of a new row the share of rows, itself among them, that have a larger one.

    A number that is not known lies in the middle; `smooth` is the share of ties that count.
    """
    rows = np.vstack([reference, row])
    known = np.where(np.isnan(rows).all(0), 0.0, rows)
    known = np.where(np.isnan(known), np.nanmedian(known, axis=0), known)
    larger, equal = (known > known[-1]).sum(0), (known == known[-1]).sum(0)
    found: Floats = (larger + smooth * equal) / len(known)
    return found


def rarity(reference: Floats, groups: Sequence[str], row: Floats) -> float:
    """Return the p-value of a case among the cases of the reference, of which each group counts once."""
    scores = atypicality(np.vstack([reference, row]))
    return p_value(scores[:-1], groups, scores[-1])


def most_unusual(reference: Floats, rows: Floats, names: Sequence[str], among: int | None = None) -> tuple[str, float]:
    """Return the statistic in which rows differ most from the reference, and by how many of its deviations.

    `among` is the number of the statistic, where it is known already.
    """
    together = deviations(np.vstack([reference, rows]))
    shift = together[len(reference) :].mean(0) - together[: len(reference)].mean(0)
    worst = int(np.abs(shift).argmax()) if among is None else among
    return names[worst], float(shift[worst])


class Compositions:
    """Class frequencies of groups, to which others are added one after the other."""

    def __init__(self, rows: Floats, groups: tuple[str, ...] | None = None) -> None:
        """Take the reference: frequencies ``(draws, classes)``, and the group of each; its own if not given."""
        self._near = max(1, min(len(rows) - 1, max(FEWEST, len(rows) // 4)))
        self._points, self._nearest = np.zeros((0, rows.shape[1])), np.zeros((0, self._near))
        self._groups: list[str | None] = []
        for place, row in enumerate(rows):
            self.scores(row, None if groups is None else groups[place], keep=True)

    def scores(self, row: Floats, group: str | None = None, keep: bool = False) -> Floats:
        """Return the scores of all groups with a new one, which is the last; `keep` it among them."""
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
