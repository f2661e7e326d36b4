"""Loops that numba reads from its cache and not from the memory of the process that compiled them.

A parallel loop runs in the process that compiled it as it was compiled, and in every later process as it was optimised
once more when it was stored: the same sums in another order, which differ in their last bits. Whoever needs the same
bits from several processes has the loops compiled by a process of its own first, once after an installation.
"""

import subprocess
import sys
from typing import Any

import torch
from numba import float32, float64, int32, int64

from segcal.kernels import affine_numba, affine_temperature

Signature = tuple[Any, tuple[Any, ...]]
TYPES: dict[torch.dtype, Any] = {torch.float32: float32, torch.float64: float64}


def loops(dtype: torch.dtype) -> list[Signature]:
    """Return the loops of fits to logits of this type, each with the types of its arguments."""
    real = TYPES[dtype]
    voxels = (real[:, ::1], int32[::1], real[::1])
    return [
        (affine_numba._likelihood, (*voxels, float64[:, ::1], int64)),
        (affine_temperature._fused, (*voxels, float64)),
    ]


def prepare(dtype: torch.dtype = torch.float32) -> None:
    """Have the loops of fits compiled in a process of its own, if they are not in the cache yet."""
    if not all(is_stored(kernel, signature) for kernel, signature in loops(dtype)):
        code = f"import torch; from {__name__} import compile_loops; compile_loops({dtype})"
        subprocess.run([sys.executable, "-c", code], check=False)


def compile_loops(dtype: torch.dtype) -> None:
    """Compile the loops, which stores them."""
    for kernel, signature in loops(dtype):
        kernel.compile(signature)


def compiled_here() -> bool:
    """Return whether this process compiled one of the loops itself, and so has other bits than those that did not."""
    return any(kernel.stats.cache_misses for kernel, _ in loops(torch.float32))


def is_stored(kernel: Any, signature: tuple[Any, ...]) -> bool:
    """Return whether the cache has a loop for arguments of these types; True where there is no cache to fill."""
    cache = kernel._cache
    if not hasattr(cache, "_cache_file"):
        return True
    return cache._index_key(signature, kernel.targetctx.codegen()) in cache._cache_file._load_index()
