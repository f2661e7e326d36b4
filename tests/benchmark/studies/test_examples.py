"""Maps in JSON: they come back, and the slice shown is the one of interest."""

import json

import numpy as np
import torch

from segcal.benchmark.studies.examples import decode_map, encode_indices, encode_values, picture_of, slice_of
from segcal.cases.base import Case


def test_indices_come_back_exactly_and_ignored_ones_as_255():
    indices = np.array([[0, 17, -1], [3, 200, 1]])
    encoded = json.loads(json.dumps(encode_indices(indices)))
    assert decode_map(encoded).tolist() == [[0, 17, 255], [3, 200, 1]]


def test_values_come_back_to_half_a_step():
    values = np.random.default_rng(0).normal(size=(3, 5, 7)) * 20
    encoded = encode_values(values)
    assert np.abs(decode_map(encoded) - values).max() <= (values.max() - values.min()) / 510 + 1e-9
    assert (decode_map(encode_values(np.full((4, 5), -2.5))) == -2.5).all()


def test_a_slice_is_taken_across_the_shortest_axis_where_most_is_to_be_seen():
    interest = np.zeros((9, 4, 8))
    interest[:, 2, :3] = 1
    assert slice_of(interest, interest) == (slice(None), 2, slice(None))
    assert slice_of(np.zeros((4, 8)), np.zeros((4, 8))) == (slice(None), slice(None))


def test_a_picture_is_kept_in_colour_and_a_scan_by_its_last_channel():
    image = torch.rand(3, 5, 6)
    everywhere = (slice(None), slice(None))
    case = Case("a", torch.zeros(2, 5, 6), image=image)
    assert decode_map(picture_of(case, everywhere)).shape == (3, 5, 6)
    scan = Case("a", torch.zeros(2, 5, 6, 3), image=torch.rand(4, 5, 6, 3))
    shown = decode_map(picture_of(scan, (*everywhere, 1)))
    assert np.abs(shown - scan.image[3, :, :, 1].numpy()).max() < 1 / 255
    assert picture_of(Case("a", torch.zeros(2, 5, 6)), everywhere) is None
