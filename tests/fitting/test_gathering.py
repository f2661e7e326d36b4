import numpy as np
import pytest
import torch

from segcal.fitting.gathering import KeptVoxels, gather
from segcal.fitting.sample import Voxels
from segcal.fitting.voxels import HeldVoxels, SampledVoxels, StreamedVoxels


def held(classes=3, count=400, seed=0):
    rng = np.random.default_rng(seed)
    logits = torch.as_tensor(3 * rng.normal(size=(classes, count)))
    labels = torch.as_tensor(rng.integers(classes, size=count), dtype=torch.int32)
    return Voxels(logits, labels, torch.as_tensor(rng.uniform(1, 5, size=count)))


def test_a_small_sample_is_taken_as_it_is():
    voxels = held()
    found = gather(HeldVoxels(voxels, {"a": 400}), 400, seed=0)
    assert all(torch.equal(x, y) for x, y in zip(found, voxels, strict=True))


def test_a_large_sample_is_thinned_and_its_weight_stays():
    voxels = held(count=4000)
    found = gather(HeldVoxels(voxels, {"a": 4000}), 1000, seed=0)
    assert abs(found.labels.numel() - 1000) <= 1
    assert float(found.weight.sum()) == pytest.approx(float(voxels.weight.sum()), rel=0.05)
    assert torch.equal(found.logits, gather(HeldVoxels(voxels, {"a": 4000}), 1000, seed=0).logits)


def test_a_stream_is_drawn_from_and_its_weight_stays(make_cases):
    cases = make_cases(3, 6000, parts=3)
    stream = StreamedVoxels(cases, lambda: None)
    found = gather(stream, 1500, seed=1)
    assert 1300 < found.labels.numel() < 1700
    assert float(found.weight.sum()) == pytest.approx(6000, rel=0.1)


@pytest.mark.parametrize("streamed", [True, False])
def test_a_rule_keeps_some_voxels_with_their_labels_and_weights(make_cases, streamed):
    cases = make_cases(3, 900, parts=2)
    source = StreamedVoxels(cases, lambda: None) if streamed else SampledVoxels(cases, 10_000, 0, lambda: None)
    kept = KeptVoxels(source, lambda logits: logits[1] > 0)
    together = [torch.cat(values, -1) for values in zip(*source, strict=True)]
    stays = together[0][1] > 0
    assert kept.used == int(stays.sum()) == kept.available
    assert kept.total_weight == kept.used
    for found, expected in zip(zip(*kept, strict=True), together, strict=True):
        assert torch.equal(torch.cat(found, -1), expected[..., stays])
    assert (kept.ids, kept.num_classes, kept.streamed) == (source.ids, 3, streamed)
