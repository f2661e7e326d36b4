"""Local and image-based temperatures: the tree against plain loops, the margin, and what a voxel sees."""

import math
import re

import numpy as np
import pytest
import torch

from segcal import make_calibrator
from segcal.calibrators.local_temperature import SMALLEST_TEMPERATURE, positive, with_margin
from segcal.errors import InputError
from segcal.types import Context

NAMES = ["lts", "lts_ti", "ibts"]


def normal(*shape, seed=0):
    return 3 * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(
    ("classes", "options", "count"),
    [
        *((classes, {}, count) for classes, count in ((2, 357), (5, 882), (20, 3507))),
        (5, {"image_channels": 3}, 882 + (25 * 3 + 1) + (25 * 5 + 1)),
        (5, {"full_3d": True}, 7 * (125 * 5 + 1)),
    ],
)
def test_the_counts_are_those_of_table_2_and_of_the_definitions(classes, options, count):
    for name in NAMES if not options else ["lts"]:
        calibrator = make_calibrator(name, classes, **options)
        assert (calibrator.num_parameters(), calibrator.num_identifiable()) == (count, count)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "options", [{}, {"gate_init": "zeros"}, {"canonical": True, "seed": 7}, {"full_3d": True}, {"image_channels": 3}]
)
def test_a_new_temperature_is_exactly_one(options, dtype):
    calibrator = make_calibrator("lts", 5, **options)
    context = Context(100 * normal(2, 3, 12, 14, 13, seed=1).to(dtype))
    logits = normal(2, 5, 12, 14, 13).to(dtype)
    found = calibrator.scores(logits, context).detach()
    assert torch.equal(found, logits - logits.amax(1, keepdim=True))


def test_a_voxel_sees_four_voxels_far_and_no_further(randomise):
    calibrator = randomise(make_calibrator("lts", 3))
    logits = normal(1, 3, 21, 22)
    moved = logits.clone()
    moved[:, :, 10, 11] += 5
    with torch.no_grad():
        change = (calibrator(moved) - calibrator(logits)).abs().amax(dim=(0, 1))
    rows, columns = (change > 1e-9).nonzero().T
    assert (int(rows.min()), int(rows.max()), int(columns.min()), int(columns.max())) == (6, 14, 7, 15)


def trained(calibrator, steps=200):
    """Adam on an image whose temperature depends on the sign of a neighbour's gap times the own one: no sum of both."""
    generator = torch.Generator().manual_seed(3)
    logits = 2 * torch.randn(2, 2, 16, 16, generator=generator, dtype=torch.float64)
    gap = logits[:, :1] - logits[:, 1:]
    right = torch.where(gap * gap.roll(2, dims=3) > 0, 6.0, 0.3)
    noise = -torch.empty_like(logits).exponential_(generator=generator).log()
    labels = (logits / right + noise).argmax(1)
    adam = torch.optim.Adam(calibrator.parameters(), lr=0.05)
    losses = []
    for _ in range(steps):
        adam.zero_grad()
        loss = -calibrator(logits).gather(1, labels[:, None]).mean()
        loss.backward()
        losses.append(float(loss.detach()))
        adam.step()
    return losses


def test_gates_that_start_at_zero_never_learn_and_leaves_stay_equal():
    """Definitions 1.3: the published start makes the tree one convolution, for ever."""
    calibrator = make_calibrator("lts", 2, gate_init="zeros")
    losses = trained(calibrator)
    assert losses[-1] < losses[0]
    weight, bias = calibrator.tree.weight.detach(), calibrator.tree.bias.detach()
    assert float(weight[0].abs().max()) > 0.01
    assert all(torch.equal(weight[leaf], weight[0]) for leaf in (1, 2, 3))
    assert all(torch.equal(bias[leaf], bias[0]) for leaf in (1, 2, 3))
    assert float(weight[4:].abs().max()) == float(bias[4:].abs().max()) == 0


@torch.no_grad()
def test_the_identifiable_count_is_the_rank_of_the_jacobian(randomise):
    calibrator = randomise(make_calibrator("lts_ti", 2))
    logits = normal(1, 2, 28, 29)
    columns = []
    for parameter in calibrator.parameters():
        flat = parameter.view(-1)
        for i in range(flat.numel()):
            value, ends = float(flat[i]), []
            for step in (1e-5, -1e-5):
                flat[i] = value + step
                ends.append(calibrator(logits)[:, 0].flatten())
            flat[i] = value
            columns.append((ends[0] - ends[1]) / 2e-5)
    sizes = torch.linalg.svdvals(torch.stack(columns))
    assert int((sizes > 1e-7 * sizes[0]).sum()) == calibrator.num_identifiable() == len(columns)


def temperatures(calibrator, logits):
    """The temperature of every voxel, from the ratio of a gap before and after."""
    with torch.no_grad():
        scores = calibrator.scores(logits)
    return (logits[:, 0] - logits[:, 1]) / (scores[:, 0] - scores[:, 1])


def test_the_temperature_is_that_of_the_mean_of_the_tree(randomise):
    calibrator = randomise(make_calibrator("ibts", 3))
    logits = normal(1, 3, 7, 8)
    local = make_calibrator("lts_ti", 3)
    local.load_state_dict(calibrator.state_dict())
    per_voxel = temperatures(local, logits)
    c0, eps = 0.53974239, 1e-3
    mean = (torch.log(torch.expm1(per_voxel - eps)) - c0).mean()
    expected = eps + torch.log1p(torch.exp(mean + c0))
    torch.testing.assert_close(temperatures(calibrator, logits)[0, 0, 0], expected, rtol=1e-6, atol=0)


def test_weights_say_how_many_voxels_one_stands_for(randomise):
    """A voxel of weight 2 counts as two, one of weight 0 not at all."""
    calibrator = randomise(make_calibrator("ibts", 3))
    first, second = normal(1, 3, 6, 7), normal(1, 3, 6, 7, seed=1)
    slices = with_margin(torch.stack([first, second], dim=2), (0, 4, 4))
    alone = torch.tensor([1.0, 0.0]).reshape(1, 1, 2, 1, 1).expand(1, 1, 2, 6, 7).double()
    with torch.no_grad():
        found = calibrator.inner_scores(slices, weight=alone)[:, :, 0]
        torch.testing.assert_close(found, calibrator.scores(first), rtol=1e-9, atol=1e-9)
        twice = calibrator.inner_scores(slices, weight=alone + 1)[:, :, 0]
        three = with_margin(torch.stack([first, first, second], dim=2), (0, 4, 4))
        torch.testing.assert_close(twice, calibrator.inner_scores(three)[:, :, 0], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("space", "margin"), [((9, 7), (4, 4)), ((3, 9, 7), (0, 4, 4)), ((6, 9, 7), (4, 4, 4))])
def test_the_margin_is_the_reflection_of_numpy(space, margin):
    values = normal(2, 3, *space)
    expected = np.pad(values.numpy(), [(0, 0), (0, 0), *((width, width) for width in margin)], mode="reflect")
    assert np.array_equal(with_margin(values, margin).numpy(), expected)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_an_axis_that_is_too_short_is_continued_by_its_last_value(size):
    values = normal(2, 3, size, 9)
    long = np.pad(values.numpy(), [(0, 0), (0, 0), (0, 0), (4, 4)], mode="reflect")
    expected = np.pad(long, [(0, 0), (0, 0), (4, 4), (0, 0)], mode="edge")
    assert np.array_equal(with_margin(values, (4, 4)).numpy(), expected)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(4, 5), (4, 5, 7), (4, 5, 2, 3, 2, 3)])
def test_what_is_neither_image_nor_volume_is_refused(name, shape):
    text = f"logits has {len(shape) - 2} axes of space, but .* sees neighbours and needs 2 .image. or 3 .volume."
    with pytest.raises(InputError, match=text):
        make_calibrator(name, 5)(normal(*shape))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("space", [(1, 1), (2, 3), (1, 9), (1, 8, 7), (5, 1, 1)])
def test_images_smaller_than_the_kernel_and_single_slices_are_calibrated(name, space, randomise):
    calibrator = randomise(make_calibrator(name, 5))
    logits = normal(2, 5, *space)
    out = calibrator(logits)
    assert out.shape == logits.shape
    assert bool(torch.isfinite(out).all())
    assert torch.equal(out.argmax(1), logits.argmax(1))
    torch.testing.assert_close(make_calibrator(name, 5)(logits), logits.log_softmax(1), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(1, 3, 0, 5), (2, 3, 4, 0), (1, 3, 2, 0, 4)])
def test_an_image_without_voxels_is_refused_in_one_sentence(name, shape):
    text = f"logits has shape {shape}, but {name} sees neighbours and needs at least one voxel along every axis"
    with pytest.raises(InputError, match=re.escape(text)):
        make_calibrator(name, 3)(torch.zeros(shape))


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


@pytest.mark.parametrize(("canonical", "channels"), [(False, 0), (True, 0), (True, 2)])
def test_the_temperatures_are_those_of_a_plain_loop(canonical, channels, randomise):
    """With an image there is one more leaf and one more gate."""
    calibrator = randomise(make_calibrator("lts", 3, canonical=canonical, image_channels=channels))
    logits, image, own = normal(1, 3, 6, 7, seed=1), 255 * torch.rand(1, 2, 6, 7, dtype=torch.float64), ()
    context, tree = Context(image), calibrator.tree.requires_grad_(False)
    if channels:
        centre, scale = torch.tensor([100.0, 120.0]), torch.tensor([60.0, 70.0])
        tree.image_centre.copy_(centre)
        tree.image_scale.copy_(scale)
        seen = ((image[0] - centre[:, None, None]) / scale[:, None, None]).numpy()
        own = (seen, tree.image_weight.numpy(), float(tree.image_bias))
    features = torch.log_softmax(logits, 1) if canonical else logits
    temperature = plain_tree(features[0].numpy(), tree.weight.numpy(), tree.bias.numpy(), *own)
    assert temperature.std() > 0.1
    expected = torch.log_softmax(logits / torch.from_numpy(temperature), 1)
    torch.testing.assert_close(calibrator(logits, context), expected, rtol=1e-6, atol=1e-6)
    change = calibrator(logits, context) - calibrator(logits, Context(0 * image))
    assert (float(change.abs().max()) > 0.01) == (channels > 0)


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
