"""The slice shown is the one of interest."""

import numpy as np
import torch

from segcal.benchmark.studies.examples import picture_of, slice_of
from segcal.cases.base import Case
from segcal.report.pictures import decode_map


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
