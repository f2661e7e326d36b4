"""Parts that depend on the number of voxels alone, and fits whose bytes do not depend on who compiled their loops."""

import os
import subprocess
import sys

import pytest
import torch

from segcal.kernels.threads import cut, in_threads

CODE = """
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


def test_parts_cover_all_voxels_and_end_with_whole_tiles():
    for voxels in (0, 1, 63, 8192, 16_383, 16_384, 1_000_003):
        ends = cut(voxels, 64)
        assert (ends[0], ends[-1]) == (0, voxels)
        assert ends == sorted(ends)
        assert all(end % 64 == 0 for end in ends[:-1])
        assert len(ends) - 1 == max(1, min(32, voxels // 8192))


@pytest.mark.parametrize("threads", [1, 3])
def test_results_come_in_the_order_of_the_parts(threads, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    assert in_threads(lambda part: part * part, 5) == [0, 1, 4, 9, 16]


def test_who_compiled_changes_not_one_byte_of_a_fit(tmp_path):
    """The first process compiles, the second reads what was stored, the third has nowhere to store it."""
    blocked = tmp_path / "file"
    blocked.touch()
    found = []
    for cache in (tmp_path / "cache", tmp_path / "cache", blocked / "cache"):
        done = subprocess.run(
            [sys.executable, "-c", CODE],
            env={**os.environ, "NUMBA_CACHE_DIR": str(cache)},
            capture_output=True,
            text=True,
            check=True,
        )
        *lines, threads = done.stdout.splitlines()
        assert (len(lines), threads) == (5, "2")
        found.append(lines)
    assert list((tmp_path / "cache").rglob("*.nbc"))
    assert found[0] == found[1] == found[2]
