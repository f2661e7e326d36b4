"""Maps of a case: what they hold, on which scale, and that volumes and large pictures stay small."""

import json

import numpy as np
import pytest
import torch
from msgspec import to_builtins

from segcal.calibrators import make_calibrator
from segcal.cases import ArrayCases
from segcal.cases.base import Case
from segcal.report import images
from segcal.report.images import SeenCase, decode_map, encode_image, encode_indices, encode_jpeg, encode_values

MAPS = {"truth", "prediction", "before", "after", "foreground_before", "foreground_after", "energy", "image"}
EVERYWHERE = (slice(None), slice(None))


def cases_of(space, count=1, classes=3):
    rng = np.random.default_rng(len(space))
    labels = [rng.integers(classes, size=space) for _ in range(count)]
    logits = [rng.normal(size=(classes, *space)).astype(np.float32) * 3 for _ in range(count)]
    return ArrayCases(logits, labels, images=[rng.random((1, *space)).astype(np.float32) for _ in range(count)])


def soft(classes=3):
    calibrator = make_calibrator("ts", classes)
    with torch.no_grad():
        calibrator.inverse_temperature.fill_(0.5)
    return calibrator


def numbers_of(cases):
    return {name: SeenCase(name, [], [0.5, float(name)], [0.1, 0.1], [0.9, 0.9], 54, None) for name in cases.ids}


def seen(cases, calibrator=None, background=True, **options):
    return images.see_cases(cases, numbers_of(cases), calibrator or soft(), background, **options)


def test_indices_come_back_exactly_and_ignored_ones_as_255():
    encoded = json.loads(json.dumps(encode_indices(np.array([[0, 17, -1], [3, 200, 1]]))))
    assert decode_map(encoded).tolist() == [[0, 17, 255], [3, 200, 1]]


def test_values_come_back_to_half_a_step_and_are_cut_at_the_ends_of_a_given_scale(rng):
    values = rng.normal(size=(3, 5, 7)) * 20
    assert np.abs(decode_map(encode_values(values)) - values).max() <= (values.max() - values.min()) / 510 + 1e-9
    assert (decode_map(encode_values(np.full((4, 5), -2.5))) == -2.5).all()
    encoded = encode_values(np.array([[-1.0, 0.5, 2.0]]), 0.0, 1.0)
    assert (encoded["low"], encoded["high"]) == (0.0, 1.0)
    assert np.abs(decode_map(encoded) - [[0.0, 0.5, 1.0]]).max() <= 0.5 / 255


def test_a_picture_to_look_at_comes_back_nearly_in_grey_and_colour():
    for channels, shape in ((1, (16, 24)), (3, (3, 16, 24))):
        back = decode_map(encode_jpeg(np.full((channels, 16, 24), 100, np.uint8)))
        assert back.shape == shape
        assert np.abs(back - 100 / 255).max() < 0.03


def test_the_arrays_are_what_a_plain_softmax_says():
    case = cases_of((7, 5)).read("0")
    layers = images.layers_of(case, soft())
    logits = case.logits.double().numpy()
    before, after = (np.exp(z) / np.exp(z).sum(0) for z in (logits, logits / 2))
    assert layers["before"][0] == pytest.approx(before.max(0), abs=1e-6)
    assert layers["after"][0] == pytest.approx(after.max(0), abs=1e-6)
    assert layers["foreground_after"][0] == pytest.approx(1 - after[0], abs=1e-6)
    assert (layers["prediction"][0] == before.argmax(0)).all()
    assert layers["energy"][0] == pytest.approx(np.log(np.exp(logits).sum(0)), abs=1e-5)


def test_the_maps_of_a_picture_come_back_on_one_scale_and_those_that_mean_nothing_are_left_out():
    cases = cases_of((9, 6))
    (found,) = seen(cases)
    assert (found.shape, found.axis, found.step) == ([9, 6], None, 1)
    (only,) = to_builtins(found)["slices"]
    assert set(only) == MAPS | {"index"}
    layers = images.layers_of(cases.read("0"), soft())
    assert decode_map(only["truth"]).astype(int).tolist() == layers["truth"][0].tolist()
    for name in ("before", "after"):
        assert (only[name]["low"], only[name]["high"]) == (0.0, 1.0)
        assert decode_map(only[name]) == pytest.approx(layers[name][0], abs=0.5 / 255 + 1e-6)
    probs = ArrayCases([cases.read("0").logits.softmax(0).numpy()], [cases.read("0").labels.numpy()], kind="probs")
    (only,) = to_builtins(seen(probs, background=False)[0])["slices"]
    assert set(only) == {"truth", "prediction", "before", "after", "index"}


def test_the_new_prediction_is_kept_where_something_flipped():
    calibrator = make_calibrator("vs", 3)
    with torch.no_grad():
        calibrator.bias[1] = 50.0
    (only,) = seen(cases_of((9, 6)), calibrator)[0].slices
    assert (decode_map(only.prediction_after) == 1).all()


def test_of_a_volume_a_few_slices_across_its_shortest_axis_are_kept():
    (found,) = seen(cases_of((20, 330, 13)))
    assert (found.axis, found.step) == (2, 3)
    assert len(found.slices) == 8
    assert decode_map(found.slices[0].truth).shape == (7, 110)


def test_slices_are_those_with_something_to_see_and_the_fullest_is_among_them():
    assert images.choose_slices(np.array([0, 0, 0, 0, 12, 0, 1, 0, 0])) == [4, 6]
    assert images.choose_slices(np.zeros(9)) == [4]
    amounts = np.full(50, 3)
    amounts[23] = 4
    assert 23 in images.choose_slices(amounts)
    assert len(images.choose_slices(amounts)) == 8
    interest = np.zeros((9, 4, 8))
    interest[:, 2, :3] = 1
    axis, found = images.slice_amounts(interest)
    assert (axis, found.tolist()) == (1, [0, 0, 27, 0])
    assert images.slice_of(interest, interest) == (slice(None), 2, slice(None))
    assert images.slice_of(np.zeros((4, 8)), np.zeros((4, 8))) == EVERYWHERE


def test_the_temperature_of_a_voxel_is_what_its_lead_is_divided_by():
    cases = cases_of((6, 5))
    assert images.temperature_of(cases.read("0"), soft()) == pytest.approx(np.full((6, 5), 2.0), rel=1e-5)
    tied = ArrayCases([np.zeros((3, 2, 2), np.float32)], [np.zeros((2, 2), int)]).read("0")
    assert (images.temperature_of(tied, soft()) == 1).all()
    (only,) = seen(cases, local=soft())[0].slices
    assert (only.temperature["low"], only.temperature["high"]) == (0.0, 5.0)


@pytest.mark.parametrize("white", [1.0, 255.0])
def test_a_picture_is_shown_as_it_is_and_made_smaller_by_means(white):
    image = np.zeros((3, 40, 60), np.float32)
    image[0, ::2] = white  # half of the rows of each block
    back = decode_map(encode_image(image, (slice(None, None, 4), slice(None, None, 4))))
    assert back.shape == (3, 10, 15)
    assert np.abs(back[0] - 0.5).max() < 0.05


def test_a_scan_is_shown_from_dark_to_bright_and_of_many_channels_the_last():
    flat = np.zeros((2, 8, 8), np.float32)
    flat[1] = np.linspace(-500, 900, 64).reshape(8, 8)
    back = decode_map(encode_image(flat, EVERYWHERE))
    assert back.min() < 0.05 < 0.95 < back.max()
    scan = Case("a", torch.zeros(2, 5, 6, 3), image=torch.rand(4, 5, 6, 3))
    shown = decode_map(images.image_of(scan, (*EVERYWHERE, 1)))
    assert np.abs(shown - scan.image[3, :, :, 1].numpy()).max() < 1 / 255
    coloured = Case("a", torch.zeros(2, 5, 6), image=torch.rand(3, 5, 6))
    assert decode_map(images.image_of(coloured, EVERYWHERE)).shape == (3, 5, 6)
    assert images.image_of(Case("a", torch.zeros(2, 5, 6)), EVERYWHERE) is None


def test_reasons_are_given_and_cases_are_few(rng):
    losses = {f"c{i:03d}": rng.random(2).tolist() for i in range(300)}
    chosen = images.choose_cases(losses)
    assert 3 <= len(chosen) <= 6
    assert next(iter(chosen)) == max(losses, key=lambda name: losses[name][1])
    assert "most gain" in chosen[max(losses, key=lambda name: losses[name][0] - losses[name][1])]


def test_pictures_are_bounded_and_lines_have_none(monkeypatch):
    assert [each.case for each in seen(cases_of((9, 6), 4))] == ["3", "2", "1", "0"]
    monkeypatch.setattr(images, "BUDGET", 1)
    (first,) = seen(cases_of((9, 6), 4))
    assert (first.case, first.why, first.nll) == ("3", ["worst", "least gain"], [0.5, 3.0])
    assert seen(cases_of((9,), 4)) == []
