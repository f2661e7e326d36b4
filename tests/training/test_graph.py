from dataclasses import replace

import pytest
import torch

from segcal.errors import InputError
from segcal.losses import LOSSES, make_loss
from segcal.training import TrainConfig, UNet, train


def test_graphs_are_for_cuda_without_mixed_precision():
    with pytest.raises(InputError, match="graph is True with device 'cpu' and amp = False, but graphs are recorded on"):
        TrainConfig(graph=True)
    with pytest.raises(
        InputError, match="amp = True, but graphs are recorded on a CUDA device without mixed precision"
    ):
        TrainConfig(graph=True, device="cuda", amp=True)


@pytest.mark.gpu
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("dims", [2, 3])
def test_a_replayed_training_is_the_plain_training(name, dims):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(8, 2, *(12,) * dims, generator=generator)
    cases = [(image.cuda(), (image[0] > 0.5).long().cuda()) for image in images]
    config = TrainConfig(epochs=4, batch_size=4, device="cuda", flips=(0,))
    losses = []
    for graph in (False, True):
        torch.manual_seed(0)
        network = UNet(2, 3, dims, widths=(4, 6))
        trained = train(network, make_loss(name), cases, replace(config, graph=graph))
        losses.append([epoch.loss for epoch in trained.history])
    assert losses[0] == pytest.approx(losses[1], rel=0.02)
