import pickle

import numpy as np
import pytest

from segcal.cases.formats.nnunet_properties import read_properties
from segcal.errors import InputError


def save(path, **changes):
    properties = {"spacing": [3.0, 2.0, 1.0], "shape_before_cropping": (2, 3, 4)}
    properties["bbox_used_for_cropping"] = [[0, 1], [1, 3], [0, 4]]
    path.write_bytes(pickle.dumps({key: value for key, value in (properties | changes).items() if value is not None}))
    return path


def test_the_box_is_put_back_into_the_arrays_order(tmp_path):
    # Box axes are array axes (1, 2, 0): shape (2, 3, 4) there is (4, 2, 3) here.
    mask, spacing = read_properties(save(tmp_path / "a.pkl"), (4, 2, 3), (1, 2, 0))
    expected = np.zeros((4, 2, 3), bool)
    expected[0:4, 0:1, 1:3] = True
    assert np.array_equal(mask, expected)
    assert spacing == (3.0, 2.0, 1.0)


@pytest.mark.parametrize(
    "changes",
    [
        {"bbox_used_for_cropping": None},
        {"bbox_used_for_cropping": [[0, 1], [1, 3]]},
        {"bbox_used_for_cropping": [[0, 1], [3, 1], [0, 4]]},
        {"bbox_used_for_cropping": [[0, 1], [1, 9], [0, 4]]},
        {"bbox_used_for_cropping": [[0, 1], [-1, 2], [0, 4]]},
        {"bbox_used_for_cropping": [[0, 1], ["a", 2], [0, 4]]},
        {"bbox_used_for_cropping": 7},
        {"shape_before_cropping": None},
        {"shape_before_cropping": "abc"},
    ],
)
def test_boxes_that_are_none_are_refused(changes, tmp_path):
    with pytest.raises(InputError, match="has no valid bbox_used_for_cropping and shape_before_cropping"):
        read_properties(save(tmp_path / "a.pkl", **changes), (2, 3, 4), (0, 1, 2))


@pytest.mark.parametrize("spacing", [None, [1.0], ["a", "b", "c"], [0.0, 1.0, 1.0], [float("nan"), 1.0, 1.0]])
def test_an_unusable_voxel_size_is_left_out(spacing, tmp_path):
    mask, found = read_properties(save(tmp_path / "a.pkl", spacing=spacing), (2, 3, 4), (0, 1, 2))
    assert found is None
    assert mask is not None


def test_properties_that_are_no_dict_are_refused(tmp_path):
    (tmp_path / "a.pkl").write_bytes(pickle.dumps([1, 2]))
    with pytest.raises(InputError, match="holds a list, but nnU-Net's properties are a dict"):
        read_properties(tmp_path / "a.pkl", (2, 3, 4), (0, 1, 2))
