"""Loops are compiled by a process of their own, and only once."""

import numpy as np
import pytest
import torch
from numba import float32, typeof

from segcal.kernels import stored


def test_types_that_nobody_compiled_are_not_stored_and_without_a_cache_there_is_nothing_to_do():
    kernel, _ = stored.loops(torch.float32)[0]
    assert not stored.is_stored(kernel, (float32,))
    assert stored.is_stored(stored.affine_numba.load_tile, (float32,))


def test_loops_that_are_stored_are_not_compiled_again(monkeypatch):
    monkeypatch.setattr(stored, "is_stored", lambda kernel, signature: True)
    monkeypatch.setattr(stored.subprocess, "run", lambda *_, **__: pytest.fail("they are stored"))
    stored.prepare()


def test_others_are_compiled_elsewhere(monkeypatch):
    asked = []
    monkeypatch.setattr(stored, "is_stored", lambda kernel, signature: False)
    monkeypatch.setattr(stored.subprocess, "run", lambda command, check: asked.append(command))
    stored.prepare(torch.float64)
    assert asked[0][-1] == "import torch; from segcal.kernels.stored import compile_loops; compile_loops(torch.float64)"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_types_are_those_that_fits_pass(dtype, monkeypatch):
    compiled = []
    (affine, own), (temperature, other) = stored.loops(dtype)
    monkeypatch.setattr(type(affine), "compile", lambda self, signature: compiled.append((self, signature)))
    stored.compile_loops(dtype)
    assert compiled == [(affine, own), (temperature, other)]
    logits = torch.zeros(3, 7, dtype=dtype).numpy()
    voxels = (logits, np.zeros(7, np.int32), logits[0].copy())
    assert own == tuple(map(typeof, (*voxels, np.zeros((3, 4)), 1)))
    assert other == tuple(map(typeof, (*voxels, 0.5)))
