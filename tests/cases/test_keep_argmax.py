import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from segcal.cases.keep_argmax import keep_binary_decision, keep_decision, lowest_argmax
from segcal.errors import InputError


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_of_equal_scores_the_wanted_class_wins_and_moves_by_one_unit(dtype):
    scores = np.array([[0.4], [0.4], [0.2]], dtype)
    kept = keep_decision(scores.copy(), np.array([1]))
    assert kept.argmax(0).tolist() == [1]
    assert kept[1, 0] == scores[1, 0]
    assert kept[0, 0] == np.nextafter(scores[0, 0], dtype(0))
    assert kept[2, 0] == scores[2, 0]


def test_a_rival_with_a_higher_index_may_stay_equal_and_is_lowered_to_the_winner():
    scores = np.array([[0.4], [0.4]], np.float32)
    assert keep_decision(scores.copy(), np.array([0])).tolist() == scores.tolist()
    low = np.float32(0.4)
    scores = np.array([[low], [np.nextafter(low, np.float32(1))]], np.float32)
    assert keep_decision(scores, np.array([0])).tolist() == [[low], [low]]


def test_a_changed_decision_is_an_error_and_not_hidden():
    with pytest.raises(
        InputError, match=r"scores would name another class at 1 of 2 voxels, but the decision is to be"
    ):
        keep_decision(np.array([[0.6, 0.5], [0.4, 0.5]]), np.array([1, 0]), "scores")
    with pytest.raises(InputError, match="would name the other class at 1 of 2 voxels"):
        keep_binary_decision(np.array([0.6, 0.2], np.float32), np.array([0, 0]))
    with pytest.raises(InputError, match="another class at 1 of 1"):
        keep_decision(np.array([[6e4], [-6e4]], np.float16), np.array([1]))


@settings(max_examples=200)
@given(
    scores=hnp.arrays(np.float64, (4, 6), elements=st.floats(-30, 0)),
    dtype=st.sampled_from([np.float16, np.float32]),
    shift=st.sampled_from([0.0, 1e-9, 1e-5]),
)
def test_rounding_never_changes_the_winner_and_never_raises_a_score(scores, dtype, shift):
    scores[2] = scores[1] + shift  # near ties
    winner = scores.argmax(axis=0)
    rounded = np.exp(scores).astype(dtype)
    kept = keep_decision(rounded.copy(), winner)
    for voxel in range(6):
        column = kept[:, voxel].tolist()
        assert column.index(max(column)) == winner[voxel]
    assert (kept <= rounded).all()
    assert (rounded.astype(float) - kept.astype(float) <= 2 * np.spacing(rounded).astype(float)).all()


def test_binary_probabilities_stay_on_their_side_of_one_half():
    kept = keep_binary_decision(np.array([0.5, 0.5, 0.7], np.float16), np.array([0, 1, 1]))
    assert (kept > 0.5).tolist() == [False, True, True]
    assert kept[1] == np.nextafter(np.float16(0.5), np.float16(1))


@settings(max_examples=50)
@given(
    values=hnp.arrays(
        st.sampled_from([np.float16, np.float32, np.float64, np.dtype(">f4")]),
        hnp.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=5),
        elements=st.sampled_from([-1.0, 0.0, 0.5, 0.5]),
    )
)
def test_the_winner_is_the_lowest_of_equal_classes(values):
    np.testing.assert_array_equal(lowest_argmax(values), values.argmax(0))
