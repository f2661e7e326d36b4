"""Crops of the input: laid side by side they give the whole."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from segcal.errors import InputError
from segcal.studies.crop_size import STUDY, in_crops


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


def test_a_wrong_size_is_refused():
    with pytest.raises(InputError, match="size is 0, but a count of voxels of at least 1 is needed"):
        in_crops(pointwise, 0)


def test_models_of_embedded_tasks_are_run_in_every_way(setting):
    study = STUDY.run(setting)
    assert list(study.data.tasks) == ["toy", "plain"]
    found = study.data.tasks["toy"]
    assert len(found) == 3
    assert all(0 < numbers["ece"].value < 1 for numbers in found.values())
    # Crops do not matter to a model without neighbours.
    assert len({numbers["ece"].value for numbers in found.values()}) == 1
