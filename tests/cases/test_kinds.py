import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from segcal.cases.kinds import check_kind, find_padding, like_probabilities, to_log_domain
from segcal.errors import InputError


def test_logits_are_taken_as_they_are_also_if_they_look_like_probabilities():
    for values in (np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32), np.full((2, 3), 0.5, np.float32)):
        assert np.array_equal(to_log_domain(values, "logits", "x").numpy(), values)


def test_zero_probabilities_are_clipped_and_the_rest_is_the_log():
    logits = to_log_domain(np.array([[1.0], [0.0]], np.float32), "probs", "x").numpy()
    np.testing.assert_allclose(logits[:, 0], [np.log(1 / (1 + 1e-7)), np.log(1e-7 / (1 + 1e-7))], rtol=1e-6, atol=1e-7)


@settings(max_examples=100)
@given(
    seed=st.integers(0, 10**6),
    dtype=st.sampled_from([np.float16, np.float32]),
    scale=st.sampled_from([1e-7, 1e-3, 1.0]),
)
def test_the_winner_of_stored_probabilities_survives_the_logarithm(seed, dtype, scale):
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=(4, 50)) * scale
    probs = (np.exp(scores) / np.exp(scores).sum(0)).astype(dtype)
    assert np.array_equal(to_log_domain(probs, "probs", "x").numpy().argmax(0), probs.argmax(0))


@pytest.mark.parametrize("shape", [(5, 6), (1, 5, 6)])
def test_one_foreground_probability_becomes_two_classes(shape):
    foreground = np.random.default_rng(1).random(shape).astype(np.float32)
    logits = to_log_domain(foreground, "sigmoid", "x")
    assert logits.shape == (2, 5, 6)
    np.testing.assert_allclose(logits.exp()[1], foreground.reshape(5, 6), atol=1e-6)


def test_above_one_half_the_foreground_wins_and_at_one_half_it_does_not():
    half = np.float32(0.5)
    values = np.array([half, np.nextafter(half, np.float32(1)), np.nextafter(half, np.float32(0))])
    assert to_log_domain(values, "sigmoid", "x").numpy().argmax(0).tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    ("values", "kind", "match"),
    [
        (np.array([[3.0], [-1.0]]), "probs", "has values from -1 to 3, but probabilities lie between 0 and 1"),
        (np.array([[0.9], [0.8]]), "probs", "whose sum over classes is off by up to 0.7"),
        (np.array([2.0]), "sigmoid", "has values from 2 to 2"),
        (np.array([[np.nan], [1.0]]), "logits", "has 1 values that are NaN or infinite"),
        (np.array([np.nan, 0.5]), "sigmoid", "has 1 values that are NaN or infinite"),
        (np.array([[1], [2]]), "logits", "has dtype int64, but floating-point values are needed"),
        (np.array([[0.5]]), "probs", r"has shape \(1, 1\), but \(classes, \*space\) with at least 2 classes"),
    ],
)
def test_numbers_that_are_not_of_the_declared_kind_are_caught(values, kind, match):
    with pytest.raises(InputError, match=match):
        to_log_domain(values, kind, "scores")


def test_an_unknown_kind_lists_the_choices():
    with pytest.raises(InputError, match=r"no kind is named 'probabilities'\. Choose one of: logits, probs, sigmoid"):
        check_kind("probabilities")


def test_tensors_of_any_floating_type_are_taken_and_float64_stays():
    assert to_log_domain(np.full((2, 3), 0.5), "probs", "x").dtype == torch.float64
    probs = torch.tensor([[0.25, 0.75], [0.75, 0.25]], dtype=torch.bfloat16)
    assert to_log_domain(probs, "probs", "x").argmax(0).tolist() == [1, 0]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([[0.2, 1.0], [0.8, 0.0]], True),
        ([[0.2, 1.01], [0.8, 0.0]], True),  # within what float16 loses
        ([[0.2, 1.0], [0.8, 0.1]], False),
        ([[-0.2, 1.0], [1.2, 0.0]], False),
        ([[0.5, 0.5], [0.5, 0.5]], False),  # one constant
        ([[0, 1], [1, 0]], False),  # whole numbers
        ([[0.2, 1.0]], False),
        (np.zeros((2, 0)), False),
    ],
)
def test_what_looks_like_probabilities(values, expected):
    assert like_probabilities(np.asarray(values)) is expected


def padded(rng, share, vector, voxels=20_000):
    scores = rng.normal(size=(len(vector), voxels)).astype(np.float32)
    scores[:, : int(share * voxels)] = np.array(vector, np.float32)[:, None]
    return scores[:, rng.permutation(voxels)].reshape(len(vector), 100, -1)


@pytest.mark.parametrize(("share", "vector"), [(0.12, (1, 0, 0, 0, 0)), (1.0, (0, 1, 0)), (0.3, (-2.5, 4.0))])
def test_padding_is_found_with_its_share_and_vector_unless_it_is_small(share, vector, rng):
    found = find_padding(padded(rng, share, vector))
    assert found.share == pytest.approx(share, abs=1e-4)
    assert found.vector == vector
    assert found.one_hot is (sum(vector) == 1)
    assert find_padding(padded(rng, 0.05, vector)) is None
    assert find_padding(rng.normal(size=(3, 50, 60))) is None


def test_what_the_mask_leaves_out_is_not_looked_at(rng):
    scores = rng.normal(size=(3, 10, 20))
    scores[:, :6] = np.array([1, 0, 0])[:, None, None]
    mask = np.ones((10, 20), bool)
    assert find_padding(scores, mask).share == 0.6
    mask[:6] = False
    assert find_padding(scores, mask) is None
    assert find_padding(scores, np.zeros((10, 20), bool)) is None
