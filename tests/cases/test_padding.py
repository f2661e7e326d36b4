import numpy as np
import pytest

from segcal.cases.padding import find_padding


def padded(rng, share, vector, voxels=20_000):
    scores = rng.normal(size=(len(vector), voxels)).astype(np.float32)
    scores[:, : int(share * voxels)] = np.array(vector, np.float32)[:, None]
    return scores[:, rng.permutation(voxels)].reshape(len(vector), 100, -1)


@pytest.mark.parametrize("share", [0.12, 0.571, 1.0])
def test_padding_is_found_with_its_share_and_vector(share, rng):
    found = find_padding(padded(rng, share, (1, 0, 0, 0, 0)))
    assert found.share == pytest.approx(share, abs=1e-4)
    assert found.vector == (1, 0, 0, 0, 0)
    assert found.one_hot


def test_another_constant_is_found_and_is_not_one_hot(rng):
    found = find_padding(padded(rng, 0.3, (-2.5, 4.0)))
    assert found.vector == (-2.5, 4.0)
    assert not found.one_hot


def test_a_small_share_is_not_worth_a_word(rng):
    assert find_padding(padded(rng, 0.05, (1, 0, 0))) is None


def test_ordinary_logits_have_no_padding(rng):
    assert find_padding(rng.normal(size=(3, 50, 60))) is None


def test_what_the_mask_leaves_out_is_not_looked_at(rng):
    scores = rng.normal(size=(3, 10, 20))
    scores[:, :6] = np.array([1, 0, 0])[:, None, None]
    mask = np.ones((10, 20), bool)
    assert find_padding(scores, mask).share == 0.6
    mask[:6] = False
    assert find_padding(scores, mask) is None
    assert find_padding(scores, np.zeros((10, 20), bool)) is None
