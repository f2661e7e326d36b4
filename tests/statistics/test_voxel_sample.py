import numpy as np
import pytest
import torch

from segcal.statistics import voxel_sample
from segcal.statistics.voxel_sample import VoxelSample, sample_voxels


@pytest.fixture
def few(monkeypatch):
    """Samples of 40 voxels, of which 7 are whole."""
    monkeypatch.setattr(voxel_sample, "MOST", 40)
    monkeypatch.setattr(voxel_sample, "MOST_WHOLE", 7)


def make_case(seed, space=(5, 31), classes=3):
    rng = np.random.default_rng(seed)
    labels = rng.integers(-1, classes, size=space)
    return torch.from_numpy(rng.normal(size=(classes, *space))), torch.from_numpy(labels)


def test_a_small_case_is_kept_whole_and_its_numbers_are_those_of_the_softmax():
    scores, labels = make_case(0)
    sample = sample_voxels(scores, labels)
    z, truth = scores.reshape(3, -1).numpy(), labels.reshape(-1).numpy()
    z, truth = z[:, truth >= 0], truth[truth >= 0]
    q = np.exp(z) / np.exp(z).sum(0)
    expected = {(round(p, 12), int(r)) for p, r in zip(q.max(0), q.argmax(0) == truth, strict=True)}
    found = 1 / (1 + np.exp(-sample.logit))
    assert {(round(p, 12), int(r)) for p, r in zip(found, sample.right, strict=True)} == expected
    assert sample.voxels == len(sample.key) == len(sample.label) == len(truth)
    assert np.allclose(np.exp(sample.log_probs).max(1), found)
    assert sorted(sample.label) == sorted(truth)


def test_certainty_beyond_what_a_probability_can_say_has_its_logit():
    sample = sample_voxels(torch.tensor([[60.0], [0.0], [1.0]]), torch.tensor([0]))
    assert sample.logit[0] == pytest.approx(60 - np.logaddexp(0, 1), rel=1e-12)


def test_a_reference_stays_where_it_is_tied():
    scores, labels = torch.tensor([[1.0, 1.0], [1.0, 2.0]]), torch.tensor([1, 0])
    assert sorted(sample_voxels(scores, labels).right) == [0, 0]
    assert sorted(sample_voxels(scores, labels, np.array([1, 0])).right) == [0, 1]


@pytest.mark.usefixtures("few")
def test_the_same_voxels_are_drawn_whatever_the_scores():
    scores, labels = make_case(1)
    marked = torch.arange(155.0, dtype=torch.float64).reshape(5, 31)
    samples = [sample_voxels(torch.stack([factor * marked, 0 * marked]), labels.clamp(max=1)) for factor in (1, 2)]
    assert len(samples[0].key) == 40
    assert len(samples[0].label) == 7
    assert np.allclose(2 * samples[0].logit, samples[1].logit)
    assert len(np.unique(samples[0].logit)) == 40  # without replacement
    assert not np.array_equal(sample_voxels(scores, labels * 0 + 1).key, sample_voxels(scores, labels).key)


@pytest.mark.usefixtures("few")
def test_sums_are_bounded_and_do_not_depend_on_order_or_grouping():
    one, two, three = (sample_voxels(*make_case(seed)) for seed in (1, 2, 3))
    total, other = (one + two) + three, three + (two + one)
    for name in ("key", "logit", "right", "label", "log_probs"):
        assert np.array_equal(getattr(total, name), getattr(other, name))
    assert len(total.key) == 40
    assert len(total.label) == len(total.log_probs) == 7
    assert total.voxels == one.voxels + two.voxels + three.voxels
    assert np.array_equal(total.label, other.label)
    assert np.allclose(total.logit[:7], _logits(total.log_probs))  # the first ones are those that are whole


def _logits(log_probs):
    doubt = np.sort(np.exp(log_probs), axis=1)[:, :-1].sum(1)
    return np.log(1 - doubt) - np.log(doubt)


@pytest.mark.usefixtures("few")
def test_a_sum_draws_from_each_case_by_its_size():
    share, draws = 0.0, 400
    for seed in range(draws):
        rng = np.random.default_rng(seed)
        big = sample_voxels(torch.zeros(2, 300) + 1, torch.from_numpy(rng.integers(0, 2, 300)))
        small = sample_voxels(torch.tensor([[5.0], [0.0]]).expand(2, 100), torch.from_numpy(rng.integers(0, 2, 100)))
        share += float(((big + small).logit > 1).mean()) / draws
    assert share == pytest.approx(0.25, abs=0.02)


def test_it_turns_into_plain_data_and_back():
    sample = sample_voxels(*make_case(4))
    again = VoxelSample.from_plain(sample.to_plain())
    for name in ("key", "logit", "right", "label", "log_probs"):
        assert np.array_equal(getattr(sample, name), getattr(again, name))
    empty = sample_voxels(torch.zeros(3, 4), torch.full((4,), -1))
    assert (empty.voxels, len(empty.key), empty.log_probs.shape) == (0, 0, (0, 3))
