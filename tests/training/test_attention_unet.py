import torch

from segcal.training import AttentionUNet
from segcal.training.attention_unet import Gate


def test_a_gate_multiplies_each_place_by_a_number_between_zero_and_one():
    torch.manual_seed(1)
    gate = Gate(2, 3, 4)
    coarse, fine = torch.rand(1, 3, 5, 6), torch.rand(1, 4, 5, 6) + 0.1
    share = gate(coarse, fine) / fine
    assert bool(((share > 0) & (share < 1)).all())
    torch.testing.assert_close(share, share[:, :1].expand_as(share))
    features = torch.relu(gate.of_coarse(coarse) + gate.of_fine(fine))
    torch.testing.assert_close(share[:, :1], 1 / (1 + torch.exp(-gate.score(features))))


def test_a_shut_gate_keeps_the_skip_connection_out():
    torch.manual_seed(2)
    network = AttentionUNet(1, 2, widths=(4, 6)).eval()
    with torch.no_grad():
        network.gates[0].score.weight.zero_()
        network.gates[0].score.bias.fill_(-100.0)
    image = torch.rand(1, 1, 8, 8)
    coarse = torch.nn.functional.interpolate(
        network.down[1](torch.nn.functional.max_pool2d(network.down[0](image), 2)), (8, 8)
    )
    expected = network.head(network.up[0](torch.cat([coarse, torch.zeros(1, 4, 8, 8)], 1)))
    torch.testing.assert_close(network(image), expected)
