"""Machine code is kept, parts depend on the number of voxels alone, and no result on who compiled its loop."""

import os
import subprocess
import sys
from itertools import pairwise

import pytest
import torch

from segcal.kernels.loops import cut, in_parts, in_threads

LOOPS = """
import numpy as np, torch
from segcal.kernels import affine_numba, conic_numba
from segcal.kernels.loops import was_compiled
loop = affine_numba._likelihood
before = was_compiled(loop)
torch.set_num_threads(2)
rng = np.random.default_rng(0)
x, theta = (torch.from_numpy(rng.random(size)) for size in ((4, 20_000), (4, 5)))
target, weight = torch.from_numpy(rng.integers(0, 4, 20_000, dtype=np.int32)), torch.from_numpy(rng.random(20_000))
place = 6 * x
place[target.long(), torch.arange(20_000)] = -1
rows = torch.from_numpy(rng.random((5, 8)).cumsum(1))
found = [*affine_numba.likelihood(x, target, weight, theta, "scores")]
found += affine_numba.temperature_terms(x.float(), target, weight.float(), 0.7)
found += conic_numba.likelihood(place, target, weight, rows, 4, [])
found.append(conic_numba.hessian(place, weight, rows, 4, []))
print(before, was_compiled(loop), sum(loop.stats.cache_misses.values()), torch.get_num_threads())
print(*(torch.as_tensor(each).double().numpy().tobytes().hex() for each in found))
"""


def test_parts_cover_all_voxels_and_end_with_whole_tiles():
    for voxels in (0, 1, 63, 8192, 16_383, 16_384, 1_000_003):
        ends = cut(voxels, 64)
        assert (ends[0], ends[-1]) == (0, voxels)
        assert ends == sorted(ends)
        assert all(end % 64 == 0 for end in ends[:-1])
        assert len(ends) - 1 == max(1, min(32, voxels // 8192))
        assert in_parts(lambda begin, end: (begin, end), voxels, 64) == list(pairwise(ends))


@pytest.mark.parametrize("threads", [1, 3])
def test_results_come_in_the_order_of_the_parts(threads, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    assert in_threads(lambda part: part * part, 5) == [0, 1, 4, 9, 16]


def run_loops(cache):
    """Return how a process found and left the machine code of a loop, and what it computed."""
    command, env = [sys.executable, "-c", LOOPS], os.environ | {"NUMBA_CACHE_DIR": str(cache)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_machine_code_is_kept_for_the_next_process_and_who_compiled_changes_not_one_byte(tmp_path):
    """The first process compiles, the second reads what was stored, the third cannot store it there."""
    (tmp_path / "file").touch()
    first, second, third = (run_loops(tmp_path / place) for place in ("cache", "cache", "file/cache"))
    assert first[0] == "False True 1 2"
    assert second[0] == "True True 0 2"
    assert len(first[1].split()) == 8
    assert first[1] == second[1] == third[1]
