"""Maps of a case: what they hold, on which scale, and that volumes and large pictures stay small."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from segcal.benchmark.studies.case_maps import (
    arrays_of,
    choose_slices,
    encode_picture,
    maps_of,
    size_of,
    temperature_of,
)
from segcal.calibrators import make_calibrator
from segcal.cases import ArrayCases
from segcal.report.pictures import decode_map

MAPS = {"truth", "prediction", "before", "after", "foreground_before", "foreground_after", "energy", "image"}


def case_of(space, classes=3, channels=1, ignore=None):
    rng = np.random.default_rng(len(space))
    labels = rng.integers(classes, size=space)
    logits = rng.normal(size=(classes, *space)).astype(np.float32) * 3
    image = rng.random((channels, *space)).astype(np.float32)
    return ArrayCases([logits], [labels], ids=["a"], images=[image], ignore=ignore).read("a")


def soft(classes=3):
    calibrator = make_calibrator("ts", classes)
    with torch.no_grad():
        calibrator.inverse_temperature.fill_(0.5)
    return calibrator


def test_the_arrays_are_what_a_plain_softmax_says():
    case = case_of((7, 5))
    calibrator = soft()
    arrays = arrays_of(case, calibrator)
    probs = torch.softmax(case.logits.double(), 0).numpy()
    after = calibrator(case.logits[None])[0].exp().detach().numpy()
    assert arrays.confidence_before == pytest.approx(probs.max(0), abs=1e-6)
    assert arrays.confidence_after == pytest.approx(after.max(0), abs=1e-6)
    assert arrays.foreground_after == pytest.approx(1 - after[0], abs=1e-6)
    assert (arrays.before == probs.argmax(0)).all()
    assert arrays.energy == pytest.approx(np.log(np.exp(case.logits.double().numpy()).sum(0)), abs=1e-5)


def test_the_maps_of_a_picture_come_back_on_one_scale():
    case = case_of((9, 6))
    arrays = arrays_of(case, soft())
    found = maps_of(case, arrays, background=True, has_offset=True)
    assert (found["shape"], found["axis"], found["step"]) == ([9, 6], None, 1)
    (only,) = found["slices"]
    assert set(only) == MAPS | {"index"}
    assert decode_map(only["truth"]).astype(int).tolist() == arrays.labels.tolist()
    for name in ("before", "after"):
        assert (only[name]["low"], only[name]["high"]) == (0.0, 1.0)
        assert decode_map(only[name]) == pytest.approx(getattr(arrays, f"confidence_{name}"), abs=0.5 / 255 + 1e-6)


def test_a_map_that_means_nothing_is_left_out():
    case = case_of((9, 6))
    (only,) = maps_of(case, arrays_of(case, soft()), background=False, has_offset=False)["slices"]
    assert not {"foreground_before", "foreground_after", "energy", "prediction_after"} & set(only)


def test_the_new_prediction_is_kept_where_something_flipped():
    case = case_of((9, 6))
    calibrator = make_calibrator("vs", 3)
    with torch.no_grad():
        calibrator.bias[1] = 50.0
    (only,) = maps_of(case, arrays_of(case, calibrator), background=True, has_offset=True)["slices"]
    assert (decode_map(only["prediction_after"]) == 1).all()


def test_of_a_volume_a_few_slices_across_its_shortest_axis_are_kept():
    case = case_of((20, 330, 13))
    found = maps_of(case, arrays_of(case, soft()), background=True, has_offset=True)
    assert (found["axis"], found["step"]) == (2, 3)
    assert len(found["slices"]) == 8
    assert decode_map(found["slices"][0]["truth"]).shape == (7, 110)
    assert size_of(found) < 1_000_000


def test_slices_without_anything_to_see_are_not_shown():
    interest = np.zeros((3, 4, 9), bool)
    interest[:, :, 4] = True
    interest[0, 0, 6] = True
    assert choose_slices(interest, 2) == [4, 6]
    assert choose_slices(np.zeros((3, 4, 9), bool), 2) == [4]
    assert choose_slices(interest, None) == [0]


def test_the_fullest_slice_is_always_among_those_shown():
    interest = np.ones((2, 2, 50), bool)
    interest[0, 0, :] = False
    interest[0, 0, 23] = True
    assert 23 in choose_slices(interest, 2)
    assert len(choose_slices(interest, 2)) == 8


def test_a_scan_is_shown_from_dark_to_bright_and_of_many_channels_the_last():
    flat = np.zeros((2, 4, 4), np.float32)
    flat[1] = np.linspace(-500, 900, 16).reshape(4, 4)
    assert encode_picture(flat, (slice(None), slice(None)))["jpeg"].startswith("/9j/")


def test_the_temperature_of_a_voxel_is_what_its_lead_is_divided_by():
    case = case_of((6, 5))
    assert temperature_of(case, soft()) == pytest.approx(np.full((6, 5), 2.0), rel=1e-5)
    tied = ArrayCases([np.zeros((3, 2, 2), np.float32)], [np.zeros((2, 2), int)], ids=["a"]).read("a")
    assert (temperature_of(tied, soft()) == 1).all()


def test_temperatures_are_stored_on_one_scale():
    case = case_of((6, 5))
    arrays = replace(arrays_of(case, soft()), temperature=temperature_of(case, soft()))
    (only,) = maps_of(case, arrays, background=True, has_offset=True)["slices"]
    assert (only["temperature"]["low"], only["temperature"]["high"]) == (0.0, 5.0)


@pytest.mark.parametrize("white", [1.0, 255.0])
def test_a_picture_is_shown_as_it_is_and_made_smaller_by_means(white):
    image = np.zeros((3, 40, 60), np.float32)
    image[0, ::2] = white  # half of the rows of each block
    back = decode_map(encode_picture(image, (slice(None, None, 4), slice(None, None, 4))))
    assert back.shape == (3, 10, 15)
    assert np.abs(back[0] - 0.5).max() < 0.05
