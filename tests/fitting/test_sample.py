import numpy as np
import pytest
import torch

from segcal.fitting.voxels import Voxels, draw, hardness, systematic


def voxels_of(classes, count, seed=0):
    rng = np.random.default_rng(seed)
    logits = torch.as_tensor(4 * rng.normal(size=(classes, count)))
    labels = torch.as_tensor(rng.integers(0, classes, count).astype(np.int32))
    return Voxels(logits, labels, torch.ones(count, dtype=torch.float64))


def nll_sum(voxels):
    own = voxels.logits.log_softmax(0).gather(0, voxels.labels.long()[None])[0]
    return float(-(voxels.weight * own).sum())


def test_weighted_sums_over_a_sample_are_unbiased():
    """The mean over many seeds is the sum over all voxels, for the count and for the likelihood."""
    voxels = voxels_of(4, 500)
    drawn = [draw(voxels, 60, np.random.default_rng(seed)) for seed in range(3000)]
    for quantity in (nll_sum, lambda sample: float(sample.weight.sum())):
        estimates = np.array([quantity(sample) for sample in drawn])
        error = estimates.std() / np.sqrt(len(estimates))
        assert abs(estimates.mean() - quantity(voxels)) < 4 * error
        assert estimates.std() > 0


def test_every_voxel_is_drawn_as_often_as_its_weight_says():
    voxels = voxels_of(3, 40)
    marked = voxels._replace(labels=torch.arange(40, dtype=torch.int32))
    counts, weights = np.zeros(40), np.zeros(40)
    for seed in range(4000):
        sample = draw(marked, 15, np.random.default_rng(seed))
        counts[sample.labels.numpy()] += 1
        weights[sample.labels.numpy()] = sample.weight.numpy()
    np.testing.assert_allclose(counts / 4000, 1 / weights, atol=0.035)
    uncertain = 1 - np.asarray(voxels.logits.softmax(0).amax(0))
    assert np.corrcoef(uncertain, counts)[0, 1] > 0.9  # hard voxels are drawn more often


def test_whether_a_voxel_is_drawn_does_not_depend_on_its_label():
    voxels = voxels_of(4, 500)
    other = voxels._replace(labels=(voxels.labels + 1) % 4)
    first, second = (draw(v, 60, np.random.default_rng(5)) for v in (voxels, other))
    assert torch.equal(first.logits, second.logits)
    assert torch.equal(first.weight, second.weight)


@pytest.mark.parametrize("quota", [1, 7, 100, 499])
def test_a_sample_never_exceeds_its_quota(quota):
    voxels = voxels_of(4, 500)
    sizes = [draw(voxels, quota, np.random.default_rng(seed)).labels.numel() for seed in range(50)]
    assert max(sizes) <= quota
    assert max(sizes) > 0


def test_few_voxels_are_all_taken_with_weight_one():
    voxels = voxels_of(4, 50)
    assert draw(voxels, 50, np.random.default_rng(0)) is voxels


def test_systematic_sampling_always_takes_what_is_certain():
    probability = torch.tensor([1.0, 0.2, 1.0, 0.3, 0.5, 1.0])
    for seed in range(20):
        index = systematic(probability, np.random.default_rng(seed)).tolist()
        assert {0, 2, 5} <= set(index)
        assert len(index) == len(set(index)) == 4


def test_hardness_is_one_minus_the_confidence():
    logits = torch.tensor([[0.0, 50.0], [0.0, 0.0]])
    assert hardness(logits).tolist() == pytest.approx([0.5, 0.0], abs=1e-6)
    assert float(hardness(logits).min()) > 0
