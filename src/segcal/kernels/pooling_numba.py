r"""Pooling of members on the CPU in float32, one pass over each: the fused version of :mod:`segcal.pooling`.

Probabilities are added as they are, so a member costs one exponential a value and the logarithm is taken once, at the
end. Below :math:`e^{-80}` a sum is kept as its logarithm, a negative number, so that nothing underflows. Tiles in which
that happens take a slower loop.
"""

import math
from collections.abc import Callable
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from segcal.checks import LARGEST_LOGIT, check_finite
from segcal.kernels.exponential import exp_below_zero, log_32
from segcal.kernels.loops import SOURCES, TILE, compiled, in_threads, part
from segcal.kernels.reliability_numba import load_row

F = np.float32
Result = TypeVar("Result")
FAR, LEAST, LARGEST = F(-80.0), F(math.exp(-80.0)), F(LARGEST_LOGIT)
ZERO, ONE = F(0.0), F(1.0)


class FusedSums:
    """Running sums over members, of values or probabilities, and of their entropies; each is made if it is wanted."""

    def __init__(self, like: Tensor, logits: bool, probs: bool, entropy: bool) -> None:
        classes, voxels = like.shape
        self.count = 0
        # What is not wanted has no voxels.
        sizes = ((classes, voxels * logits), (classes, voxels * (probs or entropy)), (voxels * entropy,))
        self._logits, self._probs, self._entropy = (np.zeros(size, np.float32) for size in sizes)
        self._far = np.zeros(-(-voxels // TILE), np.bool_)  # tiles in which some sums are logarithms

    def add(self, member: Tensor, name: str) -> None:
        """Add a member ``(classes, n)``; `name` is for messages."""
        half = member.dtype != torch.float32
        raw = (member.view(torch.uint16) if half else member).numpy()
        kind = member.dtype == torch.bfloat16, member.dtype != torch.float16

        def work(begin: int, end: int) -> int:
            room = [np.empty(size, np.float32) for size in ((len(raw), TILE), 2 * TILE, 2 * TILE, TILE)]
            sums = self._logits, self._probs, self._entropy, self._far
            return add_member(raw, *kind, not self.count, begin, end, *sums, *room)

        if any(_in_threads(work, raw.shape[1])):
            check_finite(member, name)
        self.count += 1

    def mean_logits(self) -> Tensor:
        """Return the mean of the values."""
        return torch.from_numpy(self._logits).div_(self.count)

    def mean_probs(self) -> tuple[Tensor, Tensor | None]:
        """Return the logarithm of the mean of the probabilities, and the disagreement where that is wanted."""
        several = self._entropy.size if self.count > 1 else 0

        def work(begin: int, end: int) -> None:
            finish(self._probs, self._entropy[:several], F(math.log(self.count)), F(1 / self.count), begin, end)

        _in_threads(work, self._probs.shape[1])
        return torch.from_numpy(self._probs), torch.from_numpy(self._entropy) if several else None


def _in_threads(work: Callable[[int, int], Result], voxels: int) -> list[Result]:
    """Do a piece of work for one part per thread: a voxel's result does not depend on its part."""
    threads, tiles = torch.get_num_threads(), -(-voxels // TILE)
    ends = [min(voxels, TILE * (tiles * number // threads)) for number in range(threads + 1)]
    return in_threads(lambda number: work(ends[number], ends[number + 1]), threads)


@part
def _count_large(row, n):  # type: ignore[no-untyped-def]
    found = 0
    for v in range(n):
        found += not (abs(row[v]) <= LARGEST)
    return found


@part
def _plus(row, total, n):  # type: ignore[no-untyped-def]
    for v in range(n):
        total[v] += row[v]


@part
def _find_ends(row, ends, n):  # type: ignore[no-untyped-def]
    for v in range(n):
        ends[v] = max(ends[v], row[v])
    for v in range(n):
        ends[TILE + v] = min(ends[TILE + v], row[v])


@part
def _count_far(ends, n):  # type: ignore[no-untyped-def]
    found = 0
    for v in range(n):
        found += ends[TILE + v] - ends[v] < FAR
    return found


@part
def _exponentials(row, top, sums, n):  # type: ignore[no-untyped-def]
    """Turn scores of one class into exponentials, and add them to the sums."""
    for v in range(n):
        e = exp_below_zero(row[v] - top[v])
        row[v] = e
        sums[v] += e


@part
def _exponentials_and_more(row, top, sums, n):  # type: ignore[no-untyped-def]
    """The same, and add exponentials times their exponents behind."""
    for v in range(n):
        gap = row[v] - top[v]
        e = exp_below_zero(gap)
        row[v] = e
        sums[v] += e
        sums[TILE + v] += e * gap


@part
def _add_entropy(sums, entropy, n):  # type: ignore[no-untyped-def]
    for v in range(n):
        entropy[v] += log_32(sums[v]) - sums[TILE + v] / sums[v]


@part
def _add(row, sums, total, n):  # type: ignore[no-untyped-def]
    for v in range(n):
        total[v] += row[v] * sums[v]


@part
def _add_far(score, row, top, sums, total, first, n):  # type: ignore[no-untyped-def]
    """Add probabilities of one class, some of them as logarithms; `score` is what `row` was the exponential of."""
    for v in range(n):
        before = total[v]
        if score[v] - top[v] >= FAR and before >= ZERO:
            total[v] = before + row[v] * sums[v]
            continue
        own = score[v] - top[v] + log_32(sums[v])
        if not first:
            before = before if before < ZERO else log_32(before)
            larger = max(own, before)
            own = larger + log_32(ONE + exp_below_zero(-abs(own - before)))
        total[v] = own if own < FAR else exp_below_zero(own)


@part
def _take_logarithm(own, log_count, n):  # type: ignore[no-untyped-def]
    for v in range(n):
        log = log_32(abs(own[v]))
        own[v] = (log if own[v] >= ZERO else own[v]) - log_count


@part
def _plus_entropy(own, mean, share, n):  # type: ignore[no-untyped-def]
    for v in range(n):
        prob = max(own[v], LEAST) * share
        mean[v] -= prob * log_32(prob)


@part
def _subtract(mean, entropy, share, n):  # type: ignore[no-untyped-def]
    """Set what is to be known: the entropy of the mean less the mean of the entropies."""
    for v in range(n):
        entropy[v] = max(mean[v] - entropy[v] * share, ZERO)


def _make(sources):  # type: ignore[no-untyped-def]
    # Some loops live in other files: their text is part of this function, so that a change of it is noticed.
    @compiled
    def add_member(raw, bfloat, wide, first, begin, end, logits, probs, entropy, far, x, ends, sums, score):  # type: ignore[no-untyped-def]
        """Add the voxels from `begin` to `end`; return how many values are not finite, or too large."""
        bad = 0 * sources
        for start in range(begin, end, TILE):
            n = min(TILE, end - start)
            for c in range(len(raw)):
                bad += load_row(raw[c], bfloat, start, x[c], n)
                if wide:
                    bad += _count_large(x[c], n)
                if logits.size:
                    _plus(x[c], logits[c, start : start + n], n)
            if bad:
                return bad
            if not probs.size:
                continue
            ends[:TILE], ends[TILE:], sums[:] = x[0], x[0], ZERO
            for c in range(1, len(raw)):
                _find_ends(x[c], ends, n)
            for c in range(len(raw)):
                if entropy.size:
                    _exponentials_and_more(x[c], ends, sums, n)
                else:
                    _exponentials(x[c], ends, sums, n)
            if entropy.size:
                _add_entropy(sums, entropy[start : start + n], n)
            for v in range(n):
                sums[v] = ONE / sums[v]
            far[start // TILE] |= _count_far(ends, n) > 0
            for c in range(len(raw)):
                if far[start // TILE]:
                    load_row(raw[c], bfloat, start, score, n)
                    _add_far(score, x[c], ends, sums, probs[c, start : start + n], first, n)
                else:
                    _add(x[c], sums, probs[c, start : start + n], n)
        return bad

    @compiled
    def finish(probs, entropy, log_count, share, begin, end):  # type: ignore[no-untyped-def]
        """Turn sums of probabilities into logarithms of their mean, and of entropies into disagreement, in place."""
        mean = np.empty(TILE, np.float32)
        for start in range(begin, end, TILE):
            n = min(TILE, end - start) + 0 * sources
            mean[:] = ZERO
            for c in range(len(probs)):
                own = probs[c, start : start + n]
                if entropy.size:
                    _plus_entropy(own, mean, share, n)
                _take_logarithm(own, log_count, n)
            if entropy.size:
                _subtract(mean, entropy[start : start + n], share, n)

    return add_member, finish


add_member, finish = _make(SOURCES)
