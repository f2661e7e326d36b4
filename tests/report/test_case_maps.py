"""Maps of a case: what they hold, on which scale, and that volumes and large pictures stay small."""

import numpy as np
import pytest
import torch
from msgspec import to_builtins
from segcal.report.case_maps import (
    CaseNumbers,
    choose_cases,
    choose_slices,
    encode_picture,
    layers_of,
    maps_of,
    picture_of,
    see_cases,
    size_of,
    slice_of,
    temperature_of,
)

from segcal.calibrators import make_calibrator
from segcal.cases import ArrayCases
from segcal.cases.base import Case
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
    layers = layers_of(case, calibrator)
    probs = torch.softmax(case.logits.double(), 0).numpy()
    after = calibrator(case.logits[None])[0].exp().detach().numpy()
    assert layers["before"][0] == pytest.approx(probs.max(0), abs=1e-6)
    assert layers["after"][0] == pytest.approx(after.max(0), abs=1e-6)
    assert layers["foreground_after"][0] == pytest.approx(1 - after[0], abs=1e-6)
    assert (layers["prediction"][0] == probs.argmax(0)).all()
    assert layers["energy"][0] == pytest.approx(np.log(np.exp(case.logits.double().numpy()).sum(0)), abs=1e-5)


def test_the_maps_of_a_picture_come_back_on_one_scale():
    case = case_of((9, 6))
    layers = layers_of(case, soft())
    found = to_builtins(maps_of(case, layers, background=True, has_offset=True))
    assert (found["shape"], found["axis"], found["step"]) == ([9, 6], None, 1)
    (only,) = found["slices"]
    assert set(only) == MAPS | {"index"}
    assert decode_map(only["truth"]).astype(int).tolist() == layers["truth"][0].tolist()
    for name in ("before", "after"):
        assert (only[name]["low"], only[name]["high"]) == (0.0, 1.0)
        assert decode_map(only[name]) == pytest.approx(layers[name][0], abs=0.5 / 255 + 1e-6)


def test_a_map_that_means_nothing_is_left_out():
    case = case_of((9, 6))
    (only,) = to_builtins(maps_of(case, layers_of(case, soft()), background=False, has_offset=False))["slices"]
    assert not {"foreground_before", "foreground_after", "energy", "prediction_after"} & set(only)


def test_the_new_prediction_is_kept_where_something_flipped():
    case = case_of((9, 6))
    calibrator = make_calibrator("vs", 3)
    with torch.no_grad():
        calibrator.bias[1] = 50.0
    (only,) = to_builtins(maps_of(case, layers_of(case, calibrator), background=True, has_offset=True))["slices"]
    assert (decode_map(only["prediction_after"]) == 1).all()


def test_of_a_volume_a_few_slices_across_its_shortest_axis_are_kept():
    case = case_of((20, 330, 13))
    found = maps_of(case, layers_of(case, soft()), background=True, has_offset=True)
    assert (found.axis, found.step) == (2, 3)
    assert len(found.slices) == 8
    assert decode_map(found.slices[0].truth).shape == (7, 110)
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
    layers = layers_of(case, soft(), local=soft())
    (only,) = to_builtins(maps_of(case, layers, background=True, has_offset=True))["slices"]
    assert (only["temperature"]["low"], only["temperature"]["high"]) == (0.0, 5.0)


@pytest.mark.parametrize("white", [1.0, 255.0])
def test_a_picture_is_shown_as_it_is_and_made_smaller_by_means(white):
    image = np.zeros((3, 40, 60), np.float32)
    image[0, ::2] = white  # half of the rows of each block
    back = decode_map(encode_picture(image, (slice(None, None, 4), slice(None, None, 4))))
    assert back.shape == (3, 10, 15)
    assert np.abs(back[0] - 0.5).max() < 0.05


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


def test_reasons_are_given_and_cases_are_few():
    rng = np.random.default_rng(0)
    losses = {f"c{i:03d}": rng.random(2).tolist() for i in range(300)}
    chosen = choose_cases(losses)
    assert 3 <= len(chosen) <= 6
    assert next(iter(chosen)) == max(losses, key=lambda name: losses[name][1])
    assert "most gain" in chosen[max(losses, key=lambda name: losses[name][0] - losses[name][1])]


def test_pictures_are_bounded_and_lines_have_none():
    rng = np.random.default_rng(1)
    cases = ArrayCases([rng.normal(size=(3, 9, 6)) for _ in range(4)], [rng.integers(3, size=(9, 6)) for _ in range(4)])
    numbers = {name: CaseNumbers([0.5, float(name)], [0.1, 0.1], [0.9, 0.9], 54, None) for name in cases.ids}
    assert [each.case for each in see_cases(cases, numbers, soft(), True)] == ["3", "2", "1", "0"]
    (first,) = see_cases(cases, numbers, soft(), True, budget=1)
    assert (first.case, first.why, first.nll) == ("3", ["worst", "least gain"], [0.5, 3.0])
    lines = ArrayCases([rng.normal(size=(3, 9)) for _ in range(4)], [rng.integers(3, size=9) for _ in range(4)])
    assert see_cases(lines, numbers, soft(), True) == []
