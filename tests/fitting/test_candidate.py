import pytest

from segcal.fitting.choice import Candidate, Tried
from segcal.fitting.scores import Worth


@pytest.mark.parametrize(("pooling", "title"), [(None, "ts"), ("single", "ts"), ("mean_probs", "ts (mean_probs)")])
def test_a_pooling_that_was_chosen_is_part_of_the_title(pooling, title):
    assert Candidate("ts", pooling, 1).title == title


def test_its_loss_is_the_mean_over_cases():
    row = Tried(Candidate("ts", None, 1), {"a": Worth(1.0, 0.1), "b": Worth(2.0, 0.3)})
    assert row.nll == 1.5
    assert row.away is None
