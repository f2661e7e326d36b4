"""Compiled loops: how they are compiled, and in how many threads they run.

Machine code is kept on disk beside the source (or in the user's cache folder). Only the first call on a machine waits
for the compiler. The loops release the interpreter lock, and threads of one process run them side by side. numba's own
parallel loops are not used. The process that compiled one runs it as first compiled. Every later process runs it as
optimised again when it was stored, with sums in another order. No fast-math, unless a loop asks for it. Every operation
is rounded as written. So a result depends neither on the width of the machine's vectors nor on the position of a voxel
in its row.

Voxels are cut into blocks whose number depends on how many there are, and on nothing else. Each block has sums of its
own, which are added in their order. So no result depends on the number of threads, which is torch's.
"""

import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numba
import numpy as np
import torch

Loop = TypeVar("Loop", bound=Callable[..., Any])
Result = TypeVar("Result")

# numba keeps machine code as long as the file of the outer loop is unchanged, and does not look at the files of the
# loops that it calls. An outer loop that closes over this number is compiled anew when a file of this folder changes.
SOURCES = zlib.crc32(b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py"))))

OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
MOST_PARTS = 32
PART_VOXELS = 8192
# Voxels that a loop takes at a time: their rows stay in the first-level cache.
TILE = 256


def part(function: Loop) -> Loop:
    """Compile a loop that other loops call; it becomes part of them."""
    return numba.njit(**OPTIONS)(function)


@part
def find_winner(x, top, winner, n):  # type: ignore[no-untyped-def]
    """Set the largest score of every voxel and its class; of equal ones, the lowest."""
    top[:n] = x[0, :n]
    winner[:n] = 0
    for c in range(1, x.shape[0]):
        row, code = x[c], np.int32(c)
        for v in range(n):
            above = row[v] > top[v]
            top[v] = row[v] if above else top[v]
            winner[v] = code if above else winner[v]


def compiled(function: Loop, fastmath: set[str] | bool = False) -> Loop:
    """Compile a loop that Python calls, and keep the machine code.

    With `fastmath` all that it calls must be inlined by numba. The process that compiles a separate function optimises
    it alone; those that read it from the disk optimise it together with the loop.
    """
    try:
        return numba.njit(cache=True, fastmath=fastmath, **OPTIONS)(function)
    except RuntimeError:  # neither the package folder nor the home folder can be written to
        return numba.njit(fastmath=fastmath, **OPTIONS)(function)


def was_compiled(loop: Any) -> bool:
    """Return whether machine code of a loop is kept on this machine, if perhaps of an earlier version."""
    place = loop.stats.cache_path
    return place is not None and any(Path(place).glob(f"*.{loop.__name__}-*.nbi"))


def cut(voxels: int, tile: int = 1) -> list[int]:
    """Return where blocks begin, and the end of the last one; every block but the last is whole tiles.

    >>> cut(20_000)
    [0, 10000, 20000]
    """
    parts = max(1, min(MOST_PARTS, voxels // PART_VOXELS))
    tiles = -(-voxels // tile)
    return [min(voxels, tile * (tiles * part // parts)) for part in range(parts + 1)]


def in_threads(work: Callable[[int], Result], parts: int) -> list[Result]:
    """Do a piece of work for every block, several at once, and return the results in their order."""
    threads = min(parts, torch.get_num_threads())
    if threads == 1:
        return [work(part) for part in range(parts)]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(work, range(parts)))


def in_parts(work: Callable[[int, int], Result], voxels: int, tile: int = 1) -> list[Result]:
    """Do a piece of work, given where it begins and ends, for every part of the voxels; results are in order."""
    ends = cut(voxels, tile)
    return in_threads(lambda part: work(ends[part], ends[part + 1]), len(ends) - 1)


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute in one thread, and leave the setting as it was."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
