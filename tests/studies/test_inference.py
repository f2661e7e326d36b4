import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from segcal.studies.inference import in_crops, over_scales, slice_by_slice

from segcal.errors import InputError


def pointwise(image):
    return torch.stack([image[0], image[0] ** 2, -image[1]])


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 12))
def test_crops_of_a_model_without_neighbours_change_nothing(height, width, size):
    image = torch.arange(2.0 * height * width).reshape(2, height, width)
    assert torch.equal(in_crops(pointwise, size)(image), pointwise(image))


def test_every_crop_is_full_and_the_last_one_counts_where_two_overlap():
    seen = []

    def numbered(image):
        seen.append(tuple(image.shape[1:]))
        return torch.full((3, *image.shape[1:]), float(len(seen)))

    found = in_crops(numbered, 4)(torch.zeros(1, 4, 10))
    assert seen == [(4, 4)] * 3
    assert found[0, 0].tolist() == [1] * 4 + [2] * 2 + [3] * 4


def test_volumes_are_cropped_along_every_axis():
    image = torch.rand(2, 3, 5, 7)
    assert torch.equal(in_crops(pointwise, 2)(image), pointwise(image))


def test_a_model_of_slices_sees_each_slice_in_its_own_way_and_pictures_pass():
    seen = []

    def shapes(image):
        seen.append(tuple(image.shape))
        return image[:1] * 2

    volume = torch.rand(2, 3, 8, 12)
    found = slice_by_slice(over_scales(shapes, [1.0, 0.5], "mean_logits"))(volume)
    assert found.shape == (1, 3, 8, 12)
    assert seen == [(2, 8, 12), (2, 4, 6)] * 3
    assert torch.equal(slice_by_slice(shapes)(volume), volume[:1] * 2)
    assert torch.equal(slice_by_slice(shapes)(volume[:, 0]), volume[:1, 0] * 2)


def test_one_scale_of_one_is_the_model_itself():
    image = torch.rand(2, 6, 8)
    torch.testing.assert_close(over_scales(pointwise, [1.0], "mean_logits")(image), pointwise(image))


def test_scales_are_pooled_as_probabilities_at_the_size_of_the_image():
    values = {(8, 12): 1.0, (4, 6): 3.0, (12, 18): -2.0}

    def by_size(image):
        logits = torch.zeros(2, *image.shape[1:])
        logits[0] = values[tuple(image.shape[1:])]
        return logits

    found = over_scales(by_size, [1.0, 0.5, 1.5])(torch.rand(1, 8, 12))
    assert found.shape == (2, 8, 12)
    expected = np.mean([1 / (1 + np.exp(-value)) for value in values.values()])
    np.testing.assert_allclose(found.softmax(0)[0], expected, rtol=1e-5)


def test_an_image_is_resized_smoothly_and_brought_back():
    ramp = torch.linspace(0, 1, 32).expand(2, 16, 32).clone()
    found = over_scales(lambda image: 5 * image, [0.5])(ramp)
    inside = slice(4, -4)
    torch.testing.assert_close(
        found[:, :, inside].softmax(0), (5 * ramp)[:, :, inside].softmax(0), rtol=0.02, atol=0.02
    )


def test_wrong_arguments_are_refused():
    with pytest.raises(InputError, match="size is 0, but a count of voxels of at least 1 is needed"):
        in_crops(pointwise, 0)
    with pytest.raises(InputError, match=r"scales is \(1.0, -1.0\), but positive factors are needed"):
        over_scales(pointwise, [1.0, -1.0])
