import numpy as np
import pytest
import torch

from segcal import make_calibrator
from segcal.fitting.frames import Frames
from segcal.fitting.voxels import SampledVoxels, StreamedVoxels

CPU = torch.device("cpu")


def silent():
    pass


def make(name, cases, cache=1 << 30, sample=None):
    calibrator = make_calibrator(name, cases.num_classes)
    source = StreamedVoxels(cases, silent) if sample is None else SampledVoxels(cases, sample, 0, silent)
    return calibrator, Frames(source, calibrator, cache, CPU)


@pytest.mark.parametrize("name", ["dc", "cdc", "cms_ap", "cms_op"])
def test_every_voxel_is_with_the_expert_of_its_predicted_class(name, make_cases):
    cases = make_cases(4, 500, parts=3)
    calibrator, frames = make(name, cases)
    logits = torch.cat([case.logits for case in cases], 1).T
    labels = torch.cat([case.labels for case in cases])
    winners = logits.argmax(1) if frames.num_experts > 1 else torch.zeros(500, dtype=torch.long)
    assert frames.counts == [int((winners == e).sum()) for e in range(frames.num_experts)]
    frame = calibrator.frame(logits)
    for expert, block in frames.blocks(list(range(frames.num_experts))):
        mine = winners == expert
        torch.testing.assert_close(block.features, frame.features[mine].T)
        order = torch.arange(4).expand(500, 4) if frame.order is None else frame.order
        # The target is the place of the label in canonical order.
        assert torch.equal(order[mine].gather(1, block.target.long()[:, None])[:, 0], labels[mine])


def test_kept_and_streamed_frames_hold_the_same_voxels(make_cases):
    cases = make_cases(4, 500, parts=3)
    _, kept = make("cms_ap", cases)
    _, streamed = make("cms_ap", cases, cache=100)
    assert kept.kept
    assert not streamed.kept
    assert kept.counts == streamed.counts
    for expert in range(4):
        whole = next(block for e, block in kept.blocks([expert]) if e == expert)
        parts = [block for e, block in streamed.blocks([expert]) if e == expert]
        assert torch.equal(torch.cat([part.features for part in parts], 1), whole.features)
        assert torch.equal(torch.cat([part.target for part in parts]), whole.target)


@pytest.mark.parametrize("cache", [1 << 30, 100])
def test_a_drawn_sample_is_an_unbiased_estimate(cache, make_cases):
    _, frames = make("dc", make_cases(3, 2000, parts=4), cache)
    exact = sum(float((block.weight * block.features[0]).sum()) for _, block in frames.blocks([0]))
    estimates = []
    for seed in range(100):
        sample = frames.draw({0: 150}, seed)[0]
        assert len(sample.target) <= 160
        estimates.append(float((sample.weight * sample.features[0]).sum()))
    error = np.std(estimates) / np.sqrt(len(estimates))
    assert abs(np.mean(estimates) - exact) < 4 * error


def test_beside_a_stream_the_sample_of_a_hessian_is_bounded(make_cases):
    cases = make_cases(3, 2000)
    _, kept = make("cms_ap", cases)
    _, streamed = make("cms_ap", cases, cache=4 * 24 * 3 * 100)
    assert kept.largest_sample == 2000
    assert streamed.largest_sample == 100


def test_restricted_frames_offer_only_what_they_were_given(make_cases):
    _, frames = make("cms_ap", make_cases(3, 900))
    samples = frames.draw({0: 50, 2: 50}, 0)
    small = frames.restricted_to(samples)
    assert [expert for expert, _ in small.blocks([0, 1, 2])] == [0, 2]
    assert small.counts == [len(samples[0].target), 0, len(samples[2].target)]
    assert frames.counts[1] > 0
