import pytest
import torch

from segcal.metrics import METRICS
from segcal.statistics import count_logits


def test_an_offset_for_each_voxel_is_what_it_measures():
    offset = torch.tensor([0.0, 1.0, 5.0, -3.0], dtype=torch.float64)
    tables = count_logits(torch.zeros(3, 4, dtype=torch.float64) + offset, torch.zeros(4, dtype=torch.int64)).tables
    assert METRICS["free_energy_std"](tables) == pytest.approx(float(offset.std(correction=0)))


def test_the_padding_artefact_of_the_published_table():
    # One-hot padding taken for logits beside a brain whose free energy is 19.6 gives a spread of 8.77.
    voxels, padded = 1000, 571
    logits = torch.zeros(5, voxels, dtype=torch.float64)
    logits[0, :padded] = 1.0
    logits[0, padded:] = 19.6
    logits[1:, padded:] = -60.0
    tables = count_logits(logits, torch.zeros(voxels, dtype=torch.int64)).tables
    assert METRICS["free_energy_std"](tables) == pytest.approx(8.77, abs=0.02)
    assert METRICS["ece"](tables) == pytest.approx(0.340, abs=1e-3)
    assert METRICS["nll"](tables) == pytest.approx(0.571 * 0.9048324, abs=1e-5)
