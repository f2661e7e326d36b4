import json
import pickle

import numpy as np
import pytest

from segcal.cases.formats.nnunet import load_dataset, read_properties
from segcal.errors import InputError


def dataset(folder, labels, **more):
    (folder / "dataset.json").write_text(json.dumps({"labels": labels} | more))


def test_heads_are_the_labels_without_ignore_in_the_order_of_their_numbers(tmp_path):
    dataset(tmp_path, {"tumour": 2, "background": 0, "ignore": 3, "liver": 1}, file_ending=".mha")
    found = load_dataset(tmp_path, None)
    assert found.class_names == ("background", "liver", "tumour")
    assert found.ignore == 3
    assert found.file_ending == ".mha"
    assert found.transpose_forward is None


@pytest.mark.parametrize(
    ("labels", "match"),
    [
        ({"0": "background", "1": "liver"}, "has labels that are not whole numbers"),
        ({"background": 0, "liver": 2}, r"has the labels \[0, 2\] and ignore = None"),
        ({"background": 0, "liver": 2, "ignore": 1}, r"has the labels \[0, 2\] and ignore = 1"),
        ({}, "has no labels"),
        ({"background": 0, "a": [1, 2]}, "defines regions, but no regions_class_order"),
    ],
)
def test_labels_that_are_no_classes_are_refused(labels, match, tmp_path):
    dataset(tmp_path, labels)
    with pytest.raises(InputError, match=match):
        load_dataset(tmp_path, None)


def test_a_folder_without_dataset_json_is_refused(tmp_path):
    (tmp_path / "a" / "b" / "c").mkdir(parents=True)
    with pytest.raises(InputError, match=r"has no dataset\.json, nor do the two folders above it"):
        load_dataset(tmp_path / "a" / "b" / "c", None)


def test_plans_without_a_valid_axis_order_are_refused(tmp_path):
    dataset(tmp_path, {"background": 0, "a": 1})
    (tmp_path / "plans.json").write_text(json.dumps({"transpose_forward": [0, 0, 2]}))
    with pytest.raises(InputError, match="has no valid transpose_forward"):
        load_dataset(tmp_path, None)


@pytest.mark.parametrize("ending", ["/../../secret.nii.gz", ".nii\0.gz", "", 5, ".gz/..", "..nii"])
def test_a_file_ending_that_leads_elsewhere_is_refused(ending, tmp_path):
    (tmp_path / "dataset.json").write_text(json.dumps({"labels": {"background": 0, "a": 1}, "file_ending": ending}))
    with pytest.raises(InputError, match=r"dataset\.json has file_ending = .*, but one such as '\.nii\.gz' is needed"):
        load_dataset(tmp_path, None)


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
