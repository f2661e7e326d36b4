"""Machine code is kept, parts depend on the number of voxels alone, and no fit on who compiled its loops."""

import os
import subprocess
import sys
from itertools import pairwise

import pytest
import torch

from segcal.kernels.loops import cut, in_parts, in_threads

KEPT = """
import sys
from segcal.kernels.loops import was_compiled
sys.path.insert(0, sys.argv[1])
from doubled import double
before = was_compiled(double)
print(before, double(21), was_compiled(double), sum(double.stats.cache_misses.values()))
"""
LOOPS = """
import numpy as np, torch
from segcal.kernels import affine_numba, conic_numba
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
print(*(torch.as_tensor(each).double().numpy().tobytes().hex() for each in found), torch.get_num_threads())
"""


def run(code, *arguments, **environment):
    command, env = [sys.executable, "-c", code, *map(str, arguments)], os.environ | environment
    return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout


def test_what_was_compiled_once_is_kept_for_the_next_process(tmp_path):
    text = "from segcal.kernels.loops import compiled\n\n@compiled\ndef double(x):\n    return 2 * x\n"
    (tmp_path / "doubled.py").write_text(text)
    assert run(KEPT, tmp_path).split() == ["False", "42", "True", "1"]
    assert run(KEPT, tmp_path).split() == ["True", "42", "True", "0"]


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


def test_who_compiled_changes_not_one_byte_of_what_a_fit_minimises(tmp_path):
    """The first process compiles, the second reads what was stored, the third has nowhere to store it."""
    blocked = tmp_path / "file"
    blocked.touch()
    places = (tmp_path / "cache", tmp_path / "cache", blocked / "cache")
    first, second, third = (run(LOOPS, NUMBA_CACHE_DIR=str(place)) for place in places)
    assert len(first.split()) == 9
    assert first.split()[-1] == "2"
    assert list((tmp_path / "cache").rglob("*.nbc"))
    assert first == second == third
