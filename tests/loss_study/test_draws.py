import numpy as np

from benchmarks.loss_study.draws import SharedDraws, shared_draws


def test_a_replicate_has_the_same_groups_in_all_seeds_it_draws():
    draws = SharedDraws(3, 5, replicates=50)
    drawn = np.empty((50, 3, 5))
    for r, weights in enumerate(draws.weights):
        drawn[draws.repeat == r] = weights
    assert (drawn == drawn[:, :1]).all()
    assert (drawn.sum(axis=2) == 5).all()
    assert len(np.unique(draws.repeat)) == 3


def test_tables_of_the_same_shape_have_the_same_draws():
    values = [np.zeros(4), np.ones(4)]
    assert shared_draws(values) is shared_draws(values[::-1])
    assert shared_draws(values).sizes == (4, 4)
