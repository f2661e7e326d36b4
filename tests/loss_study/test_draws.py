import numpy as np

from paper.loss_study.draws import shared_draws


def test_all_seeds_have_the_same_groups():
    draws = shared_draws([np.zeros(5)] * 3)
    assert draws.groups == 5
    assert all(np.array_equal(index, draws.index[0]) for index in draws.index)


def test_tables_of_the_same_shape_have_the_same_draws():
    values = [np.zeros(4), np.ones(4)]
    assert shared_draws(values) is shared_draws(values[::-1])
    assert shared_draws(values).sizes == (4, 4)
