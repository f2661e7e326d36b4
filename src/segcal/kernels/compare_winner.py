"""Decisions of scores, and where they differ from those wanted, in one pass and within memory.

The decision of scores ``(classes, *space)`` is the class of the largest, of equal ones the lowest.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from segcal.kernels.loops import SOURCES, TILE, compiled, find_winner, in_parts
from segcal.kernels.reliability_numba import load_row

# What a voxel's scores say of a class: it wins; one with a lower index is equal; another one is strictly above it.
WINS, EQUAL, BELOW = 0, 1, 2


def compare_winner(scores: Tensor, wanted: Tensor) -> np.ndarray:
    """Return of the class `wanted` at each voxel whether it wins there, uint8 ``(*space)``: :data:`WINS` and the rest.

    >>> compare_winner(torch.tensor([[1.0, 3.0, 1.0], [2.0, 3.0, 1.0]]), torch.tensor([0, 1, 0])).tolist()
    [2, 1, 0]
    """
    given = wanted.reshape(-1).long().contiguous().numpy()
    found = np.empty(len(given), np.uint8)
    _run(_compare, scores, given, found)
    return found.reshape(scores.shape[1:])


def winners(scores: Tensor) -> Tensor:
    """Return the class that wins at each voxel, int64 ``(*space)``; several times faster than `max` of torch.

    >>> winners(torch.tensor([[1.0, 3.0, 1.0], [2.0, 3.0, 1.0]])).tolist()
    [1, 0, 0]
    """
    found = np.empty(scores[0].numel(), np.int64)
    _run(_win, scores, found)
    return torch.from_numpy(found).reshape(scores.shape[1:])


def _run(loop: Callable[..., None], scores: Tensor, *arrays: np.ndarray) -> None:
    flat = scores.detach().reshape(len(scores), -1).contiguous()
    half = flat.dtype in (torch.float16, torch.bfloat16)
    raw = (flat.view(torch.uint16) if half else flat).numpy()

    def work(begin: int, end: int) -> None:
        wide = np.dtype(np.float32) if half else raw.dtype
        room = np.empty((len(raw), TILE), wide), np.empty(TILE, wide), np.empty(TILE, np.int32)
        loop(raw, flat.dtype == torch.bfloat16, begin, end, *room, *arrays)

    in_parts(work, raw.shape[1], TILE)


def _make(sources):  # type: ignore[no-untyped-def]
    # Some loops live in other files: their text is part of this function, so that a change of it is noticed.
    @compiled
    def compare(raw, bfloat, begin, end, x, top, best, wanted, found):  # type: ignore[no-untyped-def]
        for start in range(begin, end, TILE):
            n = min(TILE, end - start) + 0 * sources
            for c in range(len(raw)):
                load_row(raw[c], bfloat, start, x[c], n)  # half types are widened a few at a time
            find_winner(x, top, best, n)
            for v in range(n):
                own = wanted[start + v]
                found[start + v] = WINS if best[v] == own else (BELOW if x[own, v] < top[v] else EQUAL)

    @compiled
    def win(raw, bfloat, begin, end, x, top, best, found):  # type: ignore[no-untyped-def]
        for start in range(begin, end, TILE):
            n = min(TILE, end - start) + 0 * sources
            for c in range(len(raw)):
                load_row(raw[c], bfloat, start, x[c], n)
            find_winner(x, top, best, n)
            found[start : start + n] = best[:n]

    return compare, win


_compare, _win = _make(SOURCES)
