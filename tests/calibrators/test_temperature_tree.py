import math

import numpy as np
import pytest
import torch

from segcal import make_calibrator
from segcal.calibrators.temperature_tree import SMALLEST_TEMPERATURE, TemperatureTree, positive
from segcal.errors import InputError
from segcal.types import Context


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def reflected(index, size):
    return -index if index < 0 else 2 * (size - 1) - index if index >= size else index


def convolve(values, kernel, row, column):
    """Kernel 5, dilation 2, at one pixel of (channels, height, width)."""
    total = 0.0
    for channel in range(values.shape[0]):
        for i in range(5):
            for j in range(5):
                y = reflected(row + 2 * (i - 2), values.shape[1])
                x = reflected(column + 2 * (j - 2), values.shape[2])
                total += kernel[channel, i, j] * values[channel, y, x]
    return total


def plain_tree(features, weight, bias, image=None, image_weight=None, image_bias=0.0):
    """T of every pixel of (channels, height, width), by loops, in the notation of the definitions."""
    temperatures = np.empty(features.shape[1:])
    for row in range(features.shape[1]):
        for column in range(features.shape[2]):
            out = [convolve(features, weight[k], row, column) + bias[k] for k in range(len(weight))]
            t1, t2, t3, t4 = out[:4]
            g1, g2, g3 = (sigmoid(value) for value in out[4:7])
            tree = g3 * (g1 * t1 + (1 - g1) * t2) + (1 - g3) * (g2 * t3 + (1 - g2) * t4)
            if image is not None:
                gate = sigmoid(out[7])
                tree = gate * tree + (1 - gate) * (convolve(image, image_weight[0], row, column) + image_bias)
            c0 = 0.5397424  # definitions 1.4
            temperatures[row, column] = 1e-3 + math.log(1 + math.exp(tree + c0))
    return temperatures


@pytest.mark.parametrize("canonical", [False, True])
def test_the_temperatures_are_those_of_a_plain_loop(canonical, randomise):
    calibrator = randomise(make_calibrator("lts", 3, canonical=canonical))
    logits = 3 * torch.randn(1, 3, 6, 7, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    features = torch.log_softmax(logits, 1) if canonical else logits
    weight, bias = (x.detach().numpy() for x in (calibrator.tree.weight, calibrator.tree.bias))
    temperature = plain_tree(features[0].numpy(), weight, bias)
    assert temperature.std() > 0.1
    expected = torch.log_softmax(logits / torch.from_numpy(temperature), 1)
    torch.testing.assert_close(calibrator(logits), expected, rtol=1e-6, atol=1e-6)


def test_with_an_image_there_is_one_more_leaf_and_one_more_gate(randomise):
    calibrator = randomise(make_calibrator("lts_ti", 3, image_channels=2))
    generator = torch.Generator().manual_seed(1)
    logits = 3 * torch.randn(1, 3, 6, 7, generator=generator, dtype=torch.float64)
    image = torch.rand(1, 2, 6, 7, generator=generator, dtype=torch.float64) * 255
    tree = calibrator.tree
    tree.image_centre.copy_(torch.tensor([100.0, 120.0]))
    tree.image_scale.copy_(torch.tensor([60.0, 70.0]))
    seen = (image[0].numpy() - np.array([100.0, 120.0])[:, None, None]) / np.array([60.0, 70.0])[:, None, None]
    weight, bias, image_weight, image_bias = (
        x.detach().numpy() for x in (tree.weight, tree.bias, tree.image_weight, tree.image_bias)
    )
    features = torch.log_softmax(logits, 1)[0].numpy()
    temperature = plain_tree(features, weight, bias, seen, image_weight, image_bias[0])
    expected = torch.log_softmax(logits / torch.from_numpy(temperature), 1)
    torch.testing.assert_close(calibrator(logits, Context(image)), expected, rtol=1e-6, atol=1e-6)
    assert (
        float((calibrator(logits, Context(image)) - calibrator(logits, Context(0 * image))).detach().abs().max()) > 0.01
    )


@pytest.mark.parametrize(("channels", "text"), [(None, "image is None"), (3, "image is of 3 channels")])
def test_an_image_that_is_not_there_or_another_is_refused(channels, text):
    calibrator = make_calibrator("lts_ti", 3, image_channels=2)
    image = None if channels is None else torch.zeros(1, channels, 6, 7)
    with pytest.raises(InputError, match=f"{text}, but this calibrator sees images of 2 channels"):
        calibrator(torch.zeros(1, 3, 6, 7), None if image is None else Context(image))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_temperature_is_exactly_one_at_zero_positive_everywhere_and_linear_far_out(dtype):
    values = torch.tensor([0.0, -1e4, -30.0, 50.0, 1e4], dtype=dtype)
    found = positive(values)
    assert float(found[0]) == 1.0
    assert float(found[1]) == pytest.approx(SMALLEST_TEMPERATURE, rel=1e-3)
    assert float(found.min()) > 0
    torch.testing.assert_close(found[3:], values[3:] + 0.5397424 + 1e-3, rtol=1e-6, atol=1e-6)


def test_the_temperature_is_softplus_with_the_constant_of_the_definitions():
    values = torch.linspace(-6, 6, 50, dtype=torch.float64)
    expected = 1e-3 + torch.log1p(torch.exp(values + math.log(math.exp(1 - 1e-3) - 1)))
    torch.testing.assert_close(positive(values), expected, rtol=1e-13, atol=1e-13)


def test_leaves_start_at_zero_and_gates_at_small_random_numbers_of_the_seed():
    tree = TemperatureTree(5, 0, False, "random", 0).requires_grad_(False)
    assert float(tree.weight[:4].abs().max()) == 0
    assert float(tree.weight[4:].std()) == pytest.approx(0.1 / math.sqrt(125), rel=0.1)
    assert float(tree.bias.abs().max()) == 0
    assert torch.equal(tree.weight, TemperatureTree(5, 0, False, "random", 0).weight)
    assert not torch.equal(tree.weight, TemperatureTree(5, 0, False, "random", 1).weight)
    assert float(TemperatureTree(5, 0, False, "zeros", 0).weight.detach().abs().max()) == 0


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"gate_init": "ones"}, "gate_init is 'ones', but it must be 'random' or 'zeros'"),
        ({"image_channels": -1}, "image_channels is -1, but a whole number of at least 0 is needed"),
        ({"image_channels": 1.5}, r"image_channels is 1\.5, but a whole number"),
        ({"image_channels": True}, "image_channels is True, but a whole number"),
    ],
)
def test_options_that_mean_nothing_are_refused(options, text):
    with pytest.raises(InputError, match=text):
        make_calibrator("lts", 3, **options)
