"""Loops are compiled by a process of their own, and only once."""

import pytest
from numba import float32

from segcal.kernels import stored


def test_types_that_nobody_compiled_are_not_stored_and_without_a_cache_there_is_nothing_to_do():
    kernel, _ = stored.SIGNATURES[0]
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
    stored.prepare()
    assert asked[0][-1] == "from segcal.kernels.stored import compile_all; compile_all()"


def test_the_types_are_those_of_fits(monkeypatch):
    compiled = []
    for kernel, _ in stored.SIGNATURES:
        monkeypatch.setattr(type(kernel), "compile", lambda self, signature: compiled.append((self, signature)))
    stored.compile_all()
    assert compiled == list(stored.SIGNATURES)
    assert len(compiled) == 4
