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
FITS = """
import numpy as np, torch
torch.set_num_threads(2)
from segcal import ArrayCases, FitConfig, fit
rng = np.random.default_rng(0)
logits = 3 * rng.normal(size=(4, 100, 200))
labels = (0.5 * logits + rng.gumbel(size=logits.shape)).argmax(0)
cases = ArrayCases(logits=[logits.astype("float32")], labels=[labels])
for name in ("ts", "ms", "cms_ap", "conic", "conic_class"):
    fitted = fit(name, cases, config=FitConfig(lam=1e-4, mu=1e-4, voxels="all"))
    print(name, *(p.numpy().tobytes().hex() for p in fitted.calibrator.parameters()))
print(torch.get_num_threads())
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


def test_who_compiled_changes_not_one_byte_of_a_fit(tmp_path):
    """The first process compiles, the second reads what was stored, the third has nowhere to store it."""
    blocked = tmp_path / "file"
    blocked.touch()
    places = (tmp_path / "cache", tmp_path / "cache", blocked / "cache")
    first, second, third = (run(FITS, NUMBA_CACHE_DIR=str(place)) for place in places)
    assert len(first.splitlines()) == 6
    assert first.splitlines()[-1] == "2"
    assert list((tmp_path / "cache").rglob("*.nbc"))
    assert first == second == third
