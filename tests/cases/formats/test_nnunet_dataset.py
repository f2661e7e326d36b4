import json

import pytest

from segcal.cases.formats.nnunet_dataset import load_dataset
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
        ({"background": 0, "a": [1, 2]}, "defines the regions a"),
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
