import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from segcal.calibrators.tie_break import with_lead


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("classes", [2, 3, 20, 150, 1000])
def test_the_winner_of_equal_scores_is_seen_after_normalising(dtype, classes):
    for first in (0, classes - 1):
        scores = with_lead(torch.zeros(1, classes, 4, dtype=dtype), torch.full((1, 4), first))
        log_probs = torch.log_softmax(scores, dim=1)
        assert (log_probs.argmax(1) == first).all()
        assert (log_probs.exp().argmax(1) == first).all()
        assert float((log_probs.exp() - 1 / classes).abs().max()) < 2e-6 / classes


def test_scores_that_lead_already_stay_as_they_are():
    scores = torch.tensor([[1.0, 3.0, -2.0], [0.0, -1.0, -1.0]])
    assert torch.equal(with_lead(scores, torch.tensor([1, 0])), scores)


@given(st.lists(st.floats(-50, 0, width=32), min_size=2, max_size=6), st.integers(0, 5))
def test_no_two_classes_change_places(values, number):
    first = number % len(values)
    values[first] = 0.0
    before = torch.tensor([values])
    after = with_lead(before, torch.tensor([first]))[0].tolist()
    for a, x in zip(values, after, strict=True):
        for b, y in zip(values, after, strict=True):
            assert not (a > b and x < y)
    assert after.index(max(after)) == first
