import numpy as np
import pytest
import torch

from segcal.metrics import METRICS
from segcal.statistics import count_logits


def test_flips_are_shares_of_voxels_and_kinds_are_shares_of_flips():
    labels = torch.tensor([0, 1, 2, 0, 1, -1, 0, 0])
    before = np.array([0, 0, 0, 1, 1, 0, 0, 0])
    after = torch.tensor([1, 1, 1, 1, 1, 2, 2, 0])
    logits = torch.nn.functional.one_hot(after, 3).T.float()
    tables = count_logits(logits, labels, reference=before).tables
    # Voxel 0: right to wrong; 1: wrong to right; 2: wrong to wrong; 5: ignored; 6: right to wrong.
    assert METRICS["flip_rate"](tables) == pytest.approx(4 / 7)
    assert METRICS["harmful_flips"](tables) == pytest.approx(2 / 4)
    assert METRICS["beneficial_flips"](tables) == pytest.approx(1 / 4)
    assert METRICS["neutral_flips"](tables) == pytest.approx(1 / 4)
    assert tables.flips.count[0, 2].tolist() == [1, 0, 0]


def test_a_tie_with_the_old_winner_is_no_flip():
    logits = torch.tensor([[5.0, 5.0], [5.0, 5.0 + 1e-6], [0.0, 0.0]], dtype=torch.float64)
    tables = count_logits(logits, torch.tensor([1, 1]), reference=np.array([1, 0])).tables
    assert tables.flips.count.sum() == 1  # only the second voxel, where class 1 is strictly above
    assert tables.confusion.count[1, 1] == 2  # the first keeps its class 1 although class 0 has a lower index


def test_without_flips_their_kinds_are_undefined_and_without_a_reference_the_rate_too():
    logits, labels = torch.tensor([[1.0], [0.0]]), torch.tensor([0])
    same = count_logits(logits, labels, reference=np.array([0])).tables
    assert METRICS["flip_rate"](same) == 0
    assert METRICS["harmful_flips"](same) is None
    assert METRICS["flip_rate"](count_logits(logits, labels).tables) is None
