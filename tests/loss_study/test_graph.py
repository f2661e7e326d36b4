from dataclasses import replace

import pytest
import torch
from torch import nn

from paper.loss_study import trainer
from paper.loss_study.together import take_turns
from paper.loss_study.trainer import train, train_steps
from paper.loss_study.training import TrainConfig
from segcal.demo.unet import UNet
from segcal.errors import InputError
from segcal.losses import LOSSES, make_loss

# How far mean losses may differ: sums on a GPU have no fixed order, and bfloat16 has 8 bits.
TOLERANCE = {False: 0.02, True: 0.05}


def state_of(config):
    return trainer._State(nn.Conv2d(1, 2, 1), nn.CrossEntropyLoss(), config, num_cases=1)


@pytest.mark.parametrize("amp", [False, True])
def test_graphs_are_for_cuda_with_or_without_mixed_precision(amp):
    assert TrainConfig(graph=True, device="cuda:0", amp=amp).graph
    with pytest.raises(InputError, match="graph is True with device 'cpu', but graphs are recorded on a CUDA device"):
        TrainConfig(graph=True, amp=amp)


@pytest.mark.parametrize(("amp", "half"), [(False, None), (True, torch.bfloat16)])
def test_a_step_is_recorded_in_the_precision_of_the_training(monkeypatch, amp, half):
    monkeypatch.setattr(trainer, "GraphedGradients", lambda *arguments: arguments)
    state = state_of(TrainConfig(amp=amp))
    assert state._recorded() == (state.network, state.loss, half)


def test_mixed_precision_with_a_scaled_loss_cannot_be_recorded(monkeypatch):
    monkeypatch.setattr(TrainConfig, "amp_dtype", lambda config: torch.float16)
    monkeypatch.setattr(trainer, "GraphedGradients", lambda *arguments: arguments)
    with pytest.raises(InputError, match="graph is True with mixed precision in float16, but a recorded step cannot"):
        state_of(TrainConfig(amp=True))._recorded()
    assert state_of(TrainConfig(amp=False))._recorded()[2] is None


def on_gpu(dims):
    """Cases, and what makes an untrained network of always the same weights."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    images = torch.rand(8, 2, *(12,) * dims, generator=torch.Generator().manual_seed(0))

    def network():
        torch.manual_seed(0)
        return UNet(2, 3, dims, widths=(4, 6))

    return [(image.cuda(), (image[0] > 0.5).long().cuda()) for image in images], network


CONFIG = TrainConfig(epochs=4, batch_size=4, device="cuda", flips=(0,))


@pytest.mark.gpu
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("amp", [False, True])
def test_a_recorded_training_is_the_plain_training(name, dims, amp):
    cases, network = on_gpu(dims)
    plain, recorded = (
        [
            epoch.loss
            for epoch in train(network(), make_loss(name), cases, replace(CONFIG, amp=amp, graph=graph)).history
        ]
        for graph in (False, True)
    )
    assert recorded == pytest.approx(plain, rel=TOLERANCE[amp])


@pytest.mark.gpu
@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("amp", [False, True])
def test_trainings_recorded_side_by_side_are_the_plain_trainings(dims, amp):
    cases, network = on_gpu(dims)
    config = replace(CONFIG, amp=amp)
    recorded = replace(config, graph=True)
    trainings = ((name, train_steps(network(), make_loss(name), cases, recorded)) for name in LOSSES)
    ended = {one.name: one for one in take_turns(trainings, 3, "cuda")}
    assert set(ended) == set(LOSSES)
    for name, one in ended.items():
        assert one.error is None
        plain = train(network(), make_loss(name), cases, config)
        assert [epoch.loss for epoch in one.trained.history] == pytest.approx(
            [epoch.loss for epoch in plain.history], rel=TOLERANCE[amp]
        )
