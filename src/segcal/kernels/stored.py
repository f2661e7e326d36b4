"""Loops that numba reads from its cache and not from the memory of the process that compiled them.

A parallel loop runs in the process that compiled it as it was compiled, and in every later process as it was optimised
once more when it was stored: the same sums in another order, which differ in their last bits. Whoever needs the same
bits from several processes has the loops compiled by a process of its own first, once after an installation.
"""

import subprocess
import sys
from typing import Any

from numba import float32, float64, int32, int64

from segcal.kernels import affine_numba, affine_temperature

SIGNATURES: tuple[tuple[Any, tuple[Any, ...]], ...] = tuple(
    (kernel, (real[:, ::1], int32[::1], real[::1], *rest))
    for real in (float32, float64)
    for kernel, rest in (
        (affine_numba._likelihood, (float64[:, ::1], int64)),
        (affine_temperature._fused, (float64,)),
    )
)


def prepare() -> None:
    """Have the loops of fits compiled in a process of its own, if they are not in the cache yet."""
    if all(is_stored(kernel, signature) for kernel, signature in SIGNATURES):
        return
    subprocess.run([sys.executable, "-c", f"from {__name__} import compile_all; compile_all()"], check=False)


def compile_all() -> None:
    """Compile the loops, which stores them."""
    for kernel, signature in SIGNATURES:
        kernel.compile(signature)


def compiled_here() -> bool:
    """Return whether this process compiled one of the loops itself, and so has other bits than those that did not."""
    return any(kernel.stats.cache_misses for kernel, _ in SIGNATURES)


def is_stored(kernel: Any, signature: tuple[Any, ...]) -> bool:
    """Return whether the cache has a loop for arguments of these types; True where there is no cache to fill."""
    cache = kernel._cache
    if not hasattr(cache, "_cache_file"):
        return True
    return cache._index_key(signature, kernel.targetctx.codegen()) in cache._cache_file._load_index()
