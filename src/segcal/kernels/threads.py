"""Compiled loops in as many threads as torch has been given.

Voxels are cut into parts whose number depends on how many there are, and on nothing else; each part has sums of its
own, which are added in their order. So no result depends on the number of threads.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

Result = TypeVar("Result")

MOST_PARTS = 32
PART_VOXELS = 8192


def cut(voxels: int, tile: int = 1) -> list[int]:
    """Return where parts begin, and the end of the last one; every part but the last is whole tiles.

    >>> cut(20_000)
    [0, 10000, 20000]
    """
    parts = max(1, min(MOST_PARTS, voxels // PART_VOXELS))
    tiles = -(-voxels // tile)
    return [min(voxels, tile * (tiles * part // parts)) for part in range(parts + 1)]


def in_threads(work: Callable[[int], Result], parts: int) -> list[Result]:
    """Do a piece of work for every part, several at once, and return the results in their order."""
    threads = min(parts, torch.get_num_threads())
    if threads == 1:
        return [work(part) for part in range(parts)]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(work, range(parts)))


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute in one thread, and leave the setting as it was."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
