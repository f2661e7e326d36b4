import resource

import pytest

from segcal import make_calibrator
from segcal.errors import InputError
from segcal.fitting.eligible import candidates


def test_what_must_be_kept_decides_who_competes():
    assert candidates(4) == ["identity", "ts", "ets", "cms_ap", "cms_op", "pts", "iop", "isotonic"]
    assert candidates(4, "order") == ["identity", "ts", "ets", "cms_op", "pts", "iop", "isotonic"]
    assert not {"vs", "ms"} & set(candidates(4, "none"))
    assert {"vs", "ms", "dc"} <= set(candidates(4, "none", allow_offset_dependent=True))
    for name in candidates(4, "none"):
        assert make_calibrator(name, 4).translation_invariant
    with pytest.raises(InputError, match="preserve is 'mask', but it must be order, argmax or none"):
        candidates(4, "mask")


def test_what_cannot_fit_in_memory_is_no_candidate():
    """With 20,000 classes the parameters of cms_ap alone are 64 terabytes."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert not {"cms_ap", "cms_op"} & set(candidates(20_000))
    assert {"identity", "ts", "ets"} <= set(candidates(20_000))
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 300_000  # kilobytes; torch loads some of its own for the first one that is built without values


def test_memory_decides_who_competes(monkeypatch):
    monkeypatch.setattr("segcal.calibrators.memory_limit", lambda: 100**3 * 8 * 108)
    assert "cms_ap" not in candidates(100)
    monkeypatch.setattr("segcal.calibrators.memory_limit", lambda: 100**3 * 8 * 110)
    assert "cms_ap" in candidates(100)
