import numpy as np
import pytest
from sklearn.metrics import cohen_kappa_score

from segcal.cases.agreement import Turn, agreement, better_numbers, confusion, pair_agreement, table_agreement, turns_of


@pytest.fixture
def maps():
    rng = np.random.default_rng(3)
    labels = rng.integers(-1, 4, (5, 300))
    return np.where(rng.random((5, 300)) < 0.6, labels, rng.integers(-1, 4, (5, 300))), labels


def test_agreement_is_kappa_of_the_places_where_both_count(maps):
    decisions, labels = maps
    for decision, truth in zip(decisions, labels, strict=True):
        both = (decision >= 0) & (truth >= 0)
        expected = cohen_kappa_score(decision[both], truth[both])
        found = agreement(truth, decision, 4)
        assert found.kappa == pytest.approx(expected)
        assert found.voxels == both.sum()
        assert table_agreement(confusion(truth, decision, 4)).kappa == pytest.approx(expected)


def test_of_nothing_and_of_one_class_agreement_is_undefined():
    assert np.isnan(agreement(np.array([-1, 0]), np.array([0, -1]), 2).kappa)
    assert np.isnan(agreement(np.zeros(5, int), np.zeros(5, int), 2).kappa)


def test_pairs_are_compared_like_single_maps_where_all_voxels_count(maps):
    decisions, labels = (np.where(one < 0, 0, one).astype(np.int16) for one in maps)
    found = pair_agreement(decisions[:3], labels, 4)
    for row in range(3):
        for column in range(5):
            assert found[row, column] == pytest.approx(agreement(labels[column], decisions[row], 4).kappa)


def test_numbers_that_were_exchanged_are_found_also_of_small_classes():
    table = np.diag([9000, 500, 40, 30]) + 5
    assert better_numbers(table, 0.2, 0.3, 0.75) == {}
    assert better_numbers(table[:, [0, 1, 3, 2]], 0.2, 0.3, 0.75) == {2: 3, 3: 2}
    assert better_numbers(table[:, [3, 0, 1, 2]], 0.2, 0.3, 0.75) == {0: 1, 1: 2, 2: 3, 3: 0}


def test_a_class_that_is_mistaken_for_another_is_not_renumbered():
    table = np.array([[900, 10, 10], [5, 5, 90], [5, 5, 100]])  # class 1 is mostly called 2
    assert better_numbers(table, 0.2, 0.3, 0.75) == {}


def test_labels_that_lack_a_class_may_be_renumbered_too():
    table = np.array([[0, 300, 0], [0, 0, 200], [0, 0, 0]])  # labels begin with 0 what is called 1
    assert better_numbers(table, 0.2, 0.3, 0.75) == {0: 1, 1: 2}


@pytest.mark.parametrize(
    ("shape", "count"), [((), 1), ((7,), 2), ((4, 5), 4), ((5, 5), 8), ((1, 5), 2), ((3, 4, 4), 16), ((3, 3, 3), 48)]
)
def test_a_box_has_as_many_turns_as_symmetries_and_they_differ(shape, count):
    values = np.arange(int(np.prod(shape))).reshape(shape)
    turned = [turn(values) for turn in turns_of(shape)]
    assert len(turned) == count
    assert np.array_equal(turned[0], values)
    assert all(one.shape == shape for one in turned)
    assert len({one.tobytes() for one in turned}) == count


def test_with_many_axes_only_single_ones_are_mirrored():
    assert turns_of((2, 2, 1, 2)) == [Turn((0, 1, 2, 3)), *(Turn((0, 1, 2, 3), (axis,)) for axis in (0, 1, 3))]


@pytest.mark.parametrize("turn", turns_of((4, 4, 4)), ids=str)
def test_the_text_is_code_that_does_it(turn):
    labels = np.arange(64).reshape(4, 4, 4)
    assert np.array_equal(eval(str(turn), {"numpy": np, "labels": labels}), turn(labels))
