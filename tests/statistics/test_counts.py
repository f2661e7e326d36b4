import numpy as np
import pytest
import torch

from segcal.statistics import count_logits
from segcal.statistics.counts import FreeEnergy


def test_moments_of_parts_merge_to_those_of_the_whole():
    values = np.random.default_rng(0).normal(1e6, 1e-2, size=90)
    pieces = values[:10], values[10:70], values[70:]
    parts = [FreeEnergy(p.size, p.mean(), ((p - p.mean()) ** 2).sum()) for p in pieces]
    total = parts[0] + FreeEnergy(0, 0.0, 0.0) + parts[1] + parts[2]
    assert total.voxels == 90
    assert total.deviation / 90 == pytest.approx(values.var(), rel=1e-6)


def test_the_free_energy_is_that_of_the_raw_logits():
    logits = torch.randn(4, 30, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 12
    found = count_logits(logits, torch.zeros(30, 7, dtype=torch.int64)).tables.free_energy
    energy = torch.logsumexp(logits, 0)
    assert found.mean == pytest.approx(float(energy.mean()))
    assert found.deviation == pytest.approx(float((energy - energy.mean()).square().sum()))
