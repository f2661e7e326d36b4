"""Maps in JSON: they come back."""

import json

import numpy as np

from segcal.report.pictures import decode_map, encode_indices, encode_jpeg, encode_values


def test_indices_come_back_exactly_and_ignored_ones_as_255():
    indices = np.array([[0, 17, -1], [3, 200, 1]])
    encoded = json.loads(json.dumps(encode_indices(indices)))
    assert decode_map(encoded).tolist() == [[0, 17, 255], [3, 200, 1]]


def test_values_come_back_to_half_a_step():
    values = np.random.default_rng(0).normal(size=(3, 5, 7)) * 20
    encoded = encode_values(values)
    assert np.abs(decode_map(encoded) - values).max() <= (values.max() - values.min()) / 510 + 1e-9
    assert (decode_map(encode_values(np.full((4, 5), -2.5))) == -2.5).all()


def test_values_on_a_given_scale_are_cut_at_its_ends():
    encoded = encode_values(np.array([[-1.0, 0.5, 2.0]]), 0.0, 1.0)
    assert (encoded["low"], encoded["high"]) == (0.0, 1.0)
    assert np.abs(decode_map(encoded) - [[0.0, 0.5, 1.0]]).max() <= 0.5 / 255


def test_a_picture_to_look_at_comes_back_nearly_in_grey_and_colour():
    for channels in (1, 3):
        pixels = np.full((channels, 16, 24), 100, np.uint8)
        back = decode_map(encode_jpeg(pixels))
        assert back.shape == ((3, 16, 24) if channels == 3 else (16, 24))
        assert np.abs(back - 100 / 255).max() < 0.03
