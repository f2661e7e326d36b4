"""What every test may use: weights that a fitted calibrator could have, what figures are drawn of, and one thread.

Property tests draw the same examples every time, so that a run says something about the change and not about luck;
``HYPOTHESIS_PROFILE=explore make test`` draws others. No example has a time limit.
"""

import os
import signal
import xml.etree.ElementTree as ET
from itertools import pairwise

import numpy as np
import pytest
import torch
from _pytest.doctest import DoctestModule
from hypothesis import settings

from segcal.calibrators.affine import AffineCalibrator
from segcal.calibrators.conic import Conic
from segcal.calibrators.selective import Selective
from segcal.calibrators.tables import Histogram, Isotonic
from segcal.report.figures import to_svg
from segcal.report.images import encode_indices, encode_jpeg, encode_values

settings.register_profile("fixed", derandomize=True, deadline=None)
settings.register_profile("explore", derandomize=False, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))

# Workers share the cores already, and what is tested is small: a second thread is mostly waited for.
torch.set_num_threads(1)

# A shell without job control has its background commands ignore Ctrl-C, and whatever they start inherits that; tests
# that interrupt a process must find it listening.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collect_file():
    """Collect test files as tests alone: looked through for doctests first, one that cannot be imported is skipped."""
    return [collector for collector in (yield) if not isinstance(collector, DoctestModule)]


def _randomise_affine(calibrator, generator, edge):
    """Fill weight and bias within their bounds: with experts' cones on their edge (many zeros) if asked."""
    low = calibrator._unpack(calibrator.bounds()[0])[0]
    noise = 0.3 * torch.randn(calibrator.weight.shape, generator=generator, dtype=torch.float64)
    bias = 0.5 * torch.randn(calibrator.bias.shape, generator=generator, dtype=torch.float64)
    identity = calibrator.weight.detach().clone()
    if calibrator.lowest == 0:  # a cone
        noise, bias = noise.abs(), bias.abs()
        if edge:
            noise *= torch.rand(noise.shape, generator=generator) < 0.5
            bias *= torch.rand(bias.shape, generator=generator) < 0.5
            identity *= 10 ** (4 * torch.rand(identity.shape, generator=generator) - 3)
    calibrator.weight.copy_((identity + noise).clamp(min=low))
    calibrator.bias.copy_(bias)
    calibrator.gauge.add_(torch.randn(calibrator.gauge.shape, generator=generator, dtype=torch.float64))


def _randomise_conic(calibrator, generator, edge):
    """Fill all curves with slopes that are not negative: many of them zero, and of any size, if asked."""
    for name, parameter in calibrator.named_parameters():
        noise = torch.rand(parameter.shape, generator=generator, dtype=torch.float64)
        if edge:
            noise = 10 ** (4 * noise - 3) * (torch.rand(noise.shape, generator=generator) < 0.5)
        parameter.copy_(noise.clamp(min=1e-3) if name == "base" else 0.5 * noise)
    for span in calibrator.hat_knots.split(calibrator.hat_counts):
        span.copy_(torch.linspace(0, 4, len(span)))


def _randomise_table(calibrator, generator):
    """Fill a table as a fit could: a function with flat pieces, or bins with any accuracy."""
    if isinstance(calibrator, Isotonic):
        steps = torch.rand(calibrator.values.shape, generator=generator, dtype=torch.float64)
        calibrator.values.copy_((steps * (steps > 0.5)).cumsum(0) / steps.sum())
        calibrator.used.fill_(1.0)
        return
    calibrator.accuracy.copy_(0.02 + 0.96 * torch.rand(calibrator.bins, generator=generator, dtype=torch.float64))
    calibrator.known.fill_(1.0)


def _randomise_selector(selector, generator):
    """Flag about half of all voxels: those in which the first class is below the last, give or take some noise."""
    layers = []
    for before, after in pairwise(selector.widths):
        weight = torch.eye(after, before, dtype=torch.float64)
        layers.append((weight, torch.zeros(after, dtype=torch.float64)))
    layers[0][0].neg_()  # what it sees is negative
    layers[-1][0].zero_()
    layers[-1][0][0, 0], layers[-1][0][0, -1] = 1.0, -1.0
    for pair in layers:
        for values in pair:
            values.add_(0.02 * torch.randn(values.shape, generator=generator, dtype=torch.float64))
    selector.set_layers(layers)


def _randomise_parameters(calibrator, generator, edge):
    for name, parameter in calibrator.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
        if edge and name in ("inverse_temperature_wrong", "inverse_temperature_unsure"):
            parameter.fill_(1e-10)
        elif name == "threshold":  # between the entropies of sure and of unsure voxels
            parameter.fill_(0.3)
        elif name == "scale" or name.startswith("inverse_temperature"):
            parameter.copy_((0.7 * noise).exp())
        elif name == "mixture":
            parameter.copy_(torch.softmax(noise, 0))
        elif name.startswith(("tree.", "network.")) and parameter.ndim > 1:  # of many inputs
            parameter.add_(0.3 * noise / parameter[0].numel() ** 0.5)
        else:
            parameter.add_(0.3 * noise)


@pytest.fixture
def randomise():
    """Give a calibrator random weights that respect its bounds, and return it."""

    @torch.no_grad()
    def fill(calibrator, seed=0, edge=False):
        generator = torch.Generator().manual_seed(seed)
        if isinstance(calibrator, AffineCalibrator):
            _randomise_affine(calibrator, generator, edge)
            return calibrator
        if isinstance(calibrator, Conic):
            _randomise_conic(calibrator, generator, edge)
            return calibrator
        if isinstance(calibrator, Isotonic | Histogram):
            _randomise_table(calibrator, generator)
        _randomise_parameters(calibrator, generator, edge)
        if isinstance(calibrator, Selective):
            _randomise_selector(calibrator.selector, generator)
        return calibrator

    return fill


@pytest.fixture
def scenes():
    """A factory of cases, each (logits, labels): patches of classes, and scores that are right in most voxels."""

    def make(count, space=(24, 30), classes=3, seed=0):
        draws = np.random.default_rng(seed)
        found = []
        for _ in range(count):
            coarse = draws.normal(size=(classes, *(-(-size // 6) for size in space)))
            for axis, size in enumerate(space, start=1):
                coarse = coarse.repeat(6, axis=axis).take(range(size), axis=axis)
            labels = coarse.argmax(0).astype(np.uint8)
            own = 2.5 * (np.arange(classes).reshape(-1, *[1] * len(space)) == labels)
            found.append(((own + draws.normal(size=own.shape)).astype(np.float32), labels))
        return found

    return make


@pytest.fixture
def scene_folder(tmp_path, scenes):
    """A factory of folders of scenes: predictions and labels, which `change` makes of the number and the true ones."""

    def make(count=6, space=(24, 30), classes=3, change=lambda number, labels: labels, name="p"):
        predictions, folder = tmp_path / name, tmp_path / f"{name}_labels"
        predictions.mkdir()
        folder.mkdir()
        drawn = scenes(count, space, classes)
        for number, (logits, own) in enumerate(drawn):
            np.save(predictions / f"c{number}.npy", logits)
            np.save(folder / f"c{number}.npy", np.ascontiguousarray(change(number, own)))
        return predictions, folder

    return make


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def picture(rng):
    return encode_jpeg(rng.integers(0, 255, (3, 12, 20)).astype(np.uint8))


@pytest.fixture
def classes(rng):
    return encode_indices(rng.integers(-1, 3, (12, 20)))


@pytest.fixture
def values(rng):
    return encode_values(rng.normal(size=(12, 20)))


@pytest.fixture
def nasty():
    return "<b>\"$x_1$\" & 'y' \u202e" + "z" * 300


@pytest.fixture
def texts():
    """Return the texts of a figure, read from its SVG, which must be well formed and without scripts."""

    def read(figure):
        svg = to_svg(figure)
        root = ET.fromstring(svg)
        assert not [node for node in root.iter() if node.tag.endswith("script")]
        assert to_svg(figure) == svg
        return ["".join(node.itertext()) for node in root.iter() if node.tag.endswith("}text")]

    return read
