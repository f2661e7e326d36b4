import torch
from torch.nn.functional import interpolate, max_pool2d

from segcal.training import UNetPlusPlus


def test_nodes_are_joined_as_written():
    """Three levels, every node by hand."""
    torch.manual_seed(3)
    network = UNetPlusPlus(1, 2, widths=(4, 5, 6)).eval()
    image = torch.rand(1, 1, 12, 8)
    x00 = network.down[0](image)
    x10 = network.down[1](max_pool2d(x00, 2))
    x20 = network.down[2](max_pool2d(x10, 2))
    (l01, l11), (l02,) = network.columns
    x01 = l01(torch.cat([x00, interpolate(x10, (12, 8))], 1))
    x11 = l11(torch.cat([x10, interpolate(x20, (6, 4))], 1))
    x02 = l02(torch.cat([x00, x01, interpolate(x11, (12, 8))], 1))
    torch.testing.assert_close(network(image), network.head(x02))


def test_one_level_is_a_plain_network():
    assert UNetPlusPlus(1, 2, widths=(4,))(torch.rand(1, 1, 5, 6)).shape == (1, 2, 5, 6)
