r"""Several raters: their declaration, and their labels of one case in little memory.

A rater r has the integer weight :math:`w_r`; at voxel v the class c has the *votes*
:math:`k_{vc} = \sum_r w_r [y_{rv} = c]` of the :math:`T = \sum_r w_r` that there can be. Its *share* is
:math:`k_{vc} / \sum_c k_{vc}`. All is counted once per vote, as if the label maps of all raters were put one after
the other. Sums are in units of T votes, so that a voxel on which all raters agree counts as one with one label.

Raters agree nearly everywhere: each voxel has the number of its *pattern*, and a small table says what every rater
marked there. Memory grows neither with raters nor with classes. Shares without raters have a table of votes instead.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, Self, TypeAlias, cast, get_args

import numpy as np
import torch
from torch import Tensor

from segcal.checks import MAX_CLASSES, check_labels
from segcal.errors import InputError
from segcal.regions import Regions
from segcal.types import IGNORED

# One label map per rater; all of them along the first axis; one bit of a whole number per rater; or a share per class.
Form = Literal["maps", "axis", "bits", "shares"]
FORMS = get_args(Form)
Ints: TypeAlias = np.ndarray
Weights: TypeAlias = tuple[int, ...]
# How a user declares them.
DECLARED = ("raters", "num_raters", "rater_weights")
# Bits of bit masks, votes that still add up exactly over all voxels, and how far shares may miss a sum of 1.
MOST_BITS, MOST_VOTES, TOLERANCE = 62, 1 << 20, 1e-3


@dataclass(frozen=True)
class Raters:
    """The declaration of several raters: the form of their labels, and their weights.

    Attributes:
        form: one of :data:`FORMS`.
        weights: of each rater; of shares the votes that each voxel gets.
    """

    form: Form
    weights: Weights

    def __str__(self) -> str:
        if self.form == "shares":
            return f"shares in {self.weights[0]} votes"
        weighted = f" with weights {', '.join(map(str, self.weights))}" if len(set(self.weights)) > 1 else ""
        return f"{len(self.weights)} raters{weighted}"

    @classmethod
    def declared(
        cls,
        raters: str | None = None,
        num_raters: int | None = None,
        rater_weights: Sequence[int] | None = None,
        folders: int = 1,
    ) -> "Raters | None":
        """Return what a user declares, if anything; `folders` is how many folders of labels there are."""
        count, weights = num_raters, rater_weights
        if raters is None and count is None and weights is None and folders < 2:
            return None
        form = "maps" if raters is None and folders > 1 else raters
        if form not in FORMS or (form == "maps") != (folders > 1):
            raise InputError(
                f"raters is {form!r} with {folders} folders of labels, but several folders are 'maps', and one folder "
                f"is one of {', '.join(FORMS[1:])}. Declare how labels of raters are stored."
            )
        count = folders if form == "maps" else len(weights) if count is None and weights is not None else count
        if count is None or not 1 <= count <= (MOST_BITS if form == "bits" else MOST_VOTES):
            raise InputError(
                f"num_raters is {count}, but the number of raters must be declared, or to how many votes shares are "
                "rounded. Pass for example num_raters=10."
            )
        weights = (count,) if form == "shares" else (1,) * count if weights is None else tuple(weights)
        if len(weights) != (1 if form == "shares" else count) or min(weights) < 1 or sum(weights) > MOST_VOTES:
            raise InputError(
                f"rater_weights is {list(weights)}, but one whole number from 1 for each of {count} raters is needed. "
                "Give fractions as whole numbers with the same ratios."
            )
        return cls(cast(Form, form), weights)

    def votes(self, given: Tensor, name: str, space: Sequence[int], classes: int | None, ignore: int | None) -> "Votes":
        """Return the votes of one array that holds all raters; `classes` is None where there are regions."""
        if self.form == "axis":
            labels = check_labels(given, name, (len(self.weights), *space), classes or MAX_CLASSES, ignore)
            return self.of_maps(enumerate(labels.numpy()), classes)
        if self.form == "shares":
            return _of_shares(given.numpy(), name, tuple(space), self.weights[0], classes)
        masks = check_labels(given, name, space, 1 << len(self.weights), ignore)
        found, code = np.unique(masks.numpy(), return_inverse=True)
        marks = np.where(found[:, None] == IGNORED, IGNORED, found[:, None] >> np.arange(len(self.weights)) & 1)
        return Votes.made(code.reshape(space), marks.astype(np.int32), self.weights, classes)

    def of_maps(self, maps: Iterable[tuple[int, np.ndarray]], classes: int | None) -> "Votes":
        """Return the votes of label maps by the number of their rater; negative labels do not count.

        Of two maps only the voxels that differ are looked at.
        """
        given = iter(maps)
        base, first = next(given, (0, None))
        if first is None:
            raise InputError("no rater has labels for it, but at least one is needed. Add a label map.")
        space, flat = first.shape, first.reshape(-1)
        there = np.bincount(flat - IGNORED) > 0
        code = (np.cumsum(there, dtype=np.int32) - 1)[flat - IGNORED]
        table = np.full((int(there.sum()), len(self.weights)), IGNORED, np.int32)
        table[:, base] = np.flatnonzero(there) + IGNORED
        for number, labels in given:
            own = labels.reshape(-1)
            where = np.flatnonzero(own != flat)
            keys, new = np.unique(code[where].astype(np.int64) << 32 | (own[where] - IGNORED), return_inverse=True)
            table[:, number] = table[:, base]
            more = table[keys >> 32]
            more[:, number] = (keys & 0xFFFFFFFF) + IGNORED
            code[where] = len(table) + new
            table = np.concatenate([table, more])
        used = np.bincount(code, minlength=len(table)) > 0
        code = (np.cumsum(used, dtype=np.int32) - 1)[code].reshape(space)
        return Votes.made(code, table[used], self.weights, classes)


@dataclass(frozen=True)
class Entries:
    """Voxels once for each class that somebody marked: index, class and votes of each, of the total."""

    index: Tensor
    label: Tensor
    votes: Tensor
    total: int


@dataclass(frozen=True)
class Votes:
    """The labels of all raters of one case.

    Attributes:
        code: ``(*space)``, the pattern of each voxel, in a small type.
        marks: ``(patterns, raters)``, the label of each rater, :data:`IGNORED` for none; None of shares.
        count: ``(patterns, classes)`` int64, the votes of each class.
        weights: of each rater.
    """

    code: Tensor
    marks: np.ndarray | None
    count: np.ndarray
    weights: Weights

    @classmethod
    def made(
        cls, code: Ints, marks: Ints | None, weights: Weights, classes: int | None, count: Ints | None = None
    ) -> Self:
        """Return votes of patterns; where only marks are given they are counted."""
        kept = code.astype(np.uint8 if code.max(initial=0) < 256 else np.int32, copy=False)
        if count is None:
            assert marks is not None
            count = np.zeros((len(marks), max(int(marks.max(initial=0)) + 1, classes or 0)), np.int64)
            for own, weight in zip(marks.T, weights, strict=True):
                np.add.at(count, (np.flatnonzero(own >= 0), own[own >= 0]), weight)
        return cls(torch.from_numpy(kept), marks, count, weights)

    @property
    def total(self) -> int:
        """Return the votes that a voxel can have, T."""
        return sum(self.weights)

    @property
    def nbytes(self) -> int:
        """Return the bytes of all arrays."""
        return self.code.nbytes + self.count.nbytes + (0 if self.marks is None else self.marks.nbytes)

    @cached_property
    def cast(self) -> np.ndarray:
        """Return how many votes a voxel of each pattern has."""
        return self.count.sum(1)

    @cached_property
    def majority(self) -> np.ndarray:
        """Return the class with most votes in each pattern, the lowest of equal ones; :data:`IGNORED` without votes."""
        return np.where(self.cast > 0, self.count.argmax(1), IGNORED)

    @cached_property
    def agreed(self) -> np.ndarray:
        """Return the class that all votes are for, where a pattern has as many as any; elsewhere :data:`IGNORED`."""
        return np.where((self.count.max(1, initial=0) == self.full) & (self.cast > 0), self.majority, IGNORED)

    @property
    def full(self) -> int:
        """Return the most votes that a voxel of this case has: T, unless raters are missing."""
        return int(self.cast.max(initial=0))

    def labels(self, table: np.ndarray | None = None) -> Tensor:
        """Return the label map of the majority, or of another column of patterns, ``(*space)`` int64."""
        own = torch.from_numpy((self.majority if table is None else table).astype(np.int64))
        return own[self.code.reshape(-1).int()].reshape(self.code.shape)

    def patterns(self) -> np.ndarray:
        """Return how many voxels each pattern has."""
        return torch.bincount(self.code.reshape(-1), minlength=len(self.count)).numpy()

    def inside(self, mask: Tensor | None) -> "Votes":
        """Return the votes inside of a mask alone, if there is one."""
        if mask is None:
            return self
        none = np.zeros((1, self.count.shape[1]), np.int64)
        marks = None if self.marks is None else np.pad(self.marks, ((0, 1), (0, 0)), constant_values=IGNORED)
        code = self.code.int().where(mask, len(self.count)).numpy()
        return Votes.made(code, marks, self.weights, None, np.concatenate([self.count, none]))

    def region(self, regions: Regions, number: int) -> "Votes":
        """Return the votes for off and on of one region."""
        marks = regions.truth(torch.from_numpy(self.marks), number).numpy()
        return Votes.made(self.code.numpy(), marks, self.weights, 2)

    def part(self, where: slice | Tensor) -> "Votes":
        """Return the votes of some voxels, along one axis."""
        return replace(self, code=self.code.reshape(-1)[where])

    def entries(self) -> Entries:
        """Return the voxels that have votes, in their order, once for each class that has some."""
        pattern, label = np.nonzero(self.count)
        each = torch.from_numpy(np.bincount(pattern, minlength=len(self.count)))
        start = each.cumsum(0) - each
        code = self.code.reshape(-1).int()
        size = each[code]
        if bool((size == 1).all()):
            index, place = torch.arange(len(code)), start[code]
        else:
            index = torch.arange(len(code)).repeat_interleave(size)
            place = torch.arange(len(index)) - (size.cumsum(0) - size - start[code])[index]
        found, votes = torch.from_numpy(label), torch.from_numpy(self.count[pattern, label])
        return Entries(index, found[place], votes[place], self.total)

    def one_each(self, rng: np.random.Generator) -> Tensor:
        """Return a label map with one vote of each voxel, drawn at random where they differ."""
        found = self.labels()
        split = torch.from_numpy((self.count > 0).sum(1) > 1)[self.code.reshape(-1).int()].reshape(self.code.shape)
        code = self.code[split].numpy()
        drawn = rng.random(len(code)) * self.cast[code]
        found[split] = torch.from_numpy((np.cumsum(self.count[code], 1) <= drawn[:, None]).sum(1))
        return found


def _of_shares(given: np.ndarray, name: str, space: tuple[int, ...], total: int, classes: int | None) -> Votes:
    """Return the votes of shares ``(classes, *space)``, rounded so that every voxel has all of them."""
    if classes is None:
        raise InputError(f"{name} holds shares, but regions are read from label maps. Give a label map per rater.")
    shares = given.astype(np.float64)
    if classes == 2 and shares.shape in (space, (1, *space)):
        shares = np.stack([1 - shares.reshape(space), shares.reshape(space)])
    off = np.abs(shares.sum(0) - 1).max(initial=0) if shares.shape == (classes, *space) else np.inf
    if not (off <= TOLERANCE and (shares >= -TOLERANCE).all()):
        raise InputError(
            f"{name} has shape {given.shape} and shares that are off a sum of 1 by {off:.3g}, but the share of each of "
            f"{classes} classes is needed, with classes first, or for two classes that of the second. Correct it."
        )
    flat = shares.reshape(classes, -1).clip(0, 1) * total
    votes = np.floor(flat + 1e-6).astype(np.int64)
    short = total - votes.sum(0)
    split = np.flatnonzero(short)  # the largest remainders get what is left, the lowest class of equal ones
    rank = np.argsort(np.argsort((votes - flat)[:, split], axis=0, kind="stable"), axis=0)
    votes[:, split] += rank < short[split]
    if classes == 2:
        count, code = np.stack([np.arange(total, -1, -1), np.arange(total + 1)]), votes[1]
    else:
        count, code = np.unique(votes, axis=1, return_inverse=True)
    return Votes.made(code.reshape(space), None, (total,), classes, np.ascontiguousarray(count.T))
