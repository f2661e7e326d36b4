"""Parallel loops of numba in as many threads as torch has been given.

Both count their threads in the same OpenMP library: a loop of numba that starts its own number leaves torch with that
number. Here a loop runs in torch's number, and torch keeps it.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import numba
import torch


@contextmanager
def torch_threads() -> Iterator[None]:
    """Let numba use as many threads as torch does, at most all it has, and leave both as they were."""
    torchs, numbas = torch.get_num_threads(), numba.get_num_threads()
    numba.set_num_threads(min(torchs, numba.config.NUMBA_NUM_THREADS))  # type: ignore[attr-defined]
    try:
        yield
    finally:
        numba.set_num_threads(numbas)
        if torch.get_num_threads() != torchs:  # numba has fewer
            torch.set_num_threads(torchs)
