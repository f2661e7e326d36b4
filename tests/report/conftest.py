import xml.etree.ElementTree as ET

import numpy as np
import pytest

from segcal.report.figures import to_svg
from segcal.report.pictures import encode_indices, encode_jpeg, encode_values

NASTY = "<b>\"$x_1$\" & 'y' \u202e" + "z" * 300


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
    return NASTY


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
