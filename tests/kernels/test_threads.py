"""A parallel loop leaves torch its number of threads. In a process of its own, as threads are global."""

import os
import subprocess
import sys

import pytest

CODE = """
import numpy as np, torch
torch.set_num_threads({threads})
from segcal import ArrayCases, fit
rng = np.random.default_rng(0)
cases = ArrayCases(
    logits=[rng.normal(size=(3, 40, 50)).astype(np.float32) for _ in range(2)],
    labels=[rng.integers(0, 3, (40, 50)) for _ in range(2)],
)
for name in ("ts", "cms_ap"):
    fit(name, cases)
    import numba
    print(torch.get_num_threads(), numba.get_num_threads())
"""


@pytest.mark.parametrize(("torchs", "numbas"), [(1, 2), (3, 2), (2, 1)])
def test_a_fit_leaves_the_number_of_threads_as_it_was(torchs, numbas):
    done = subprocess.run(
        [sys.executable, "-c", CODE.format(threads=torchs)],
        env={**os.environ, "NUMBA_NUM_THREADS": str(numbas)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [str(torchs), str(numbas)] * 2
