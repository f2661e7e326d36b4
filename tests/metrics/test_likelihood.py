import numpy as np
import pytest
import torch
from sklearn.metrics import log_loss

from segcal.metrics import METRICS
from segcal.statistics import count_logits


def test_scores_against_numpy_and_scikit_learn():
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(scale=3, size=(5, 300)), rng.integers(5, size=300)
    q = np.exp(logits) / np.exp(logits).sum(0)
    tables = count_logits(torch.from_numpy(logits), torch.from_numpy(labels)).tables
    assert METRICS["nll"](tables) == pytest.approx(log_loss(labels, q.T), abs=1e-12)
    assert METRICS["brier"](tables) == pytest.approx(((q - np.eye(5)[:, labels]) ** 2).sum(0).mean(), abs=1e-12)
    root = np.sqrt(METRICS["brier"](tables))
    assert METRICS["root_brier"](tables) == pytest.approx(root, abs=1e-12)
    assert METRICS["entropy"](tables) == pytest.approx(-(q * np.log(q)).sum(0).mean(), abs=1e-12)


def test_smoothing_raises_entropy():
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(0)) * 4
    labels = torch.zeros(50, dtype=torch.int64)
    sharp, smooth = (METRICS["entropy"](count_logits(logits / t, labels).tables) for t in (1, 3))
    assert smooth > sharp


@pytest.mark.parametrize("name", ["nll", "brier", "entropy", "accuracy", "aurc", "free_energy_std", "ece"])
def test_a_case_without_voxels_that_count_is_undefined(name):
    assert METRICS[name](count_logits(torch.zeros(2, 3), torch.full((3,), -1)).tables) is None


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
