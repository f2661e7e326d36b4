import json
import pickle
import re

import nibabel
import numpy as np
import pytest
import torch
from PIL import Image

from segcal.cases import CaseError, CaseWriter, open_cases
from segcal.cases.check import check
from segcal.cases.formats.nnunet import load_dataset, read_properties
from segcal.errors import InputError

BOX = [[1, 3], [0, 4], [2, 5]]


def write_labels(folder, probabilities):
    """Reference labels as a radiologist's tool writes them: NIfTI, (x, y, z)."""
    folder.mkdir()
    for case_id, values in probabilities.items():
        labels = values.argmax(0).astype(np.int16).transpose(2, 1, 0)
        nibabel.save(nibabel.Nifti1Image(labels, np.diag([0.5, 1, 2, 1])), folder / f"{case_id}.nii.gz")
    return folder


def change_json(path, **changes):
    content = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


def test_nifti_labels_are_turned_to_the_arrays_z_y_x(tmp_path, make_nnunet):
    probabilities = make_nnunet(tmp_path / "p")
    cases = open_cases(tmp_path / "p", write_labels(tmp_path / "l", probabilities))
    case = cases.read("c1")
    assert case.labels.shape == (4, 5, 6)
    assert torch.equal(case.labels, case.logits.argmax(0))
    assert case.spacing == (2.0, 1.0, 0.5)
    assert cases.class_names == ("background", "liver", "tumour")
    assert cases.kind == "probs"
    assert not cases.has_offset


@pytest.mark.parametrize("transpose", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_the_cropping_box_is_the_mask_in_the_order_of_the_array(transpose, tmp_path, make_nnunet):
    probabilities = make_nnunet(tmp_path / "p", box=BOX, transpose=transpose)
    case = open_cases(tmp_path / "p", write_labels(tmp_path / "l", probabilities)).read("c2")
    expected = np.zeros((4, 5, 6), bool)
    expected[1:3, 0:4, 2:5] = True
    assert np.array_equal(case.mask.numpy(), expected)
    assert torch.equal(case.labels >= 0, case.mask)


def test_a_box_needs_the_plans_it_was_made_with_and_one_that_is_everything_needs_none(tmp_path, make_nnunet):
    make_nnunet(tmp_path / "whole", plans=False)
    assert open_cases(tmp_path / "whole").read("c1").mask is None
    make_nnunet(tmp_path / "p", box=[[0, 2], [0, 5], [0, 6]])
    change_json(tmp_path / "p" / "plans.json", transpose_forward=[2, 1, 0])
    with pytest.raises(CaseError, match=r"says the shape is \[4, 5, 6\] in the order \[2, 1, 0\]"):
        open_cases(tmp_path / "p").read("c1")
    (tmp_path / "p" / "plans.json").unlink()
    with pytest.raises(CaseError, match=r"has a cropping box, but plans\.json"):
        open_cases(tmp_path / "p").read("c1")


def test_padding_keeps_its_bytes_and_the_rest_of_the_folder_is_copied(tmp_path, make_nnunet, calibrate):
    probabilities = make_nnunet(tmp_path / "p", box=BOX, transpose=(2, 0, 1))
    (tmp_path / "p" / "predict_from_raw_data_args.json").write_text("{}")
    case = calibrate(open_cases(tmp_path / "p"), tmp_path / "out", "c1")
    archive = np.load(tmp_path / "out" / "c1.npz")
    assert archive.files == ["probabilities"]
    written = archive["probabilities"]
    assert written.dtype == np.float32
    outside = ~case.mask.numpy()
    assert np.array_equal(written[:, outside], probabilities["c1"][:, outside])
    assert not np.allclose(written[:, ~outside], probabilities["c1"][:, ~outside])
    for name in ("c1.pkl", "c1.nii.gz", "dataset.json", "plans.json", "predict_from_raw_data_args.json"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "p" / name).read_bytes()


def test_a_changed_and_a_pooled_decision_are_written_into_the_label_map_with_its_header(
    tmp_path, make_nnunet, calibrate
):
    first, second = make_nnunet(tmp_path / "p"), make_nnunet(tmp_path / "q")
    case = calibrate(open_cases(tmp_path / "p"), tmp_path / "out", "c1", -1.0)
    image = nibabel.load(tmp_path / "out" / "c1.nii.gz")
    assert np.array_equal(np.asarray(image.dataobj), case.logits.argmin(0).numpy().transpose(2, 1, 0))
    assert np.array_equal(image.affine, np.diag([0.5, 1, 2, 1]))
    calibrate(open_cases([tmp_path / "p", tmp_path / "q"], pooling="mean_probs"), tmp_path / "both", "c1", 1.0)
    expected = ((first["c1"] + second["c1"]) / 2).argmax(0)
    found = np.asarray(nibabel.load(tmp_path / "both" / "c1.nii.gz").dataobj)
    assert np.array_equal(found, expected.transpose(2, 1, 0))


def test_labels_of_a_reorienting_reader_are_turned_to_ras_and_back(tmp_path, make_nnunet):
    folder = tmp_path / "p"
    probabilities = make_nnunet(folder, ids=("c1",))
    change_json(folder / "plans.json", image_reader_writer="NibabelIOWithReorient")
    # The same anatomy stored as (z, x reversed, y): what was (x, y, z) in RAS.
    ras = probabilities["c1"].argmax(0).astype(np.uint8).transpose(2, 1, 0)
    stored = ras[::-1].transpose(2, 0, 1)
    affine = np.array([[0, -1.0, 0, 5], [0, 0, 1, 0], [1, 0, 0, 0], [0, 0, 0, 1]])
    for place in (folder, tmp_path / "l"):
        place.mkdir(exist_ok=True)
        nibabel.save(nibabel.Nifti1Image(stored, affine), place / "c1.nii.gz")
    case = open_cases(folder, tmp_path / "l").read("c1")
    assert torch.equal(case.labels, case.logits.argmax(0))
    CaseWriter(open_cases(folder), tmp_path / "out").write("c1", case.logits)
    assert np.array_equal(np.asarray(nibabel.load(tmp_path / "out" / "c1.nii.gz").dataobj), stored)


def test_pictures_are_volumes_of_one_slice(tmp_path, calibrate):
    folder = tmp_path / "p"
    folder.mkdir()
    rng = np.random.default_rng(0)
    values = rng.dirichlet([1, 1], size=(1, 5, 6)).transpose(3, 0, 1, 2).astype(np.float32)
    np.savez_compressed(folder / "a.npz", probabilities=values)
    box = [[0, 1], [0, 5], [0, 6]]
    properties = {"spacing": (999, 1, 1), "shape_before_cropping": (1, 5, 6), "bbox_used_for_cropping": box}
    (folder / "a.pkl").write_bytes(pickle.dumps(properties))
    (folder / "dataset.json").write_text(json.dumps({"labels": {"background": 0, "road": 1}, "file_ending": ".png"}))
    (tmp_path / "l").mkdir()
    for place in (folder, tmp_path / "l"):
        Image.fromarray(values.argmax(0)[0].astype(np.uint8)).save(place / "a.png")
    case = open_cases(folder, tmp_path / "l").read("a")
    assert torch.equal(case.labels, case.logits.argmax(0))
    assert case.spacing is None
    calibrate(open_cases(folder), tmp_path / "out", temperature=-1.0)
    assert np.array_equal(np.asarray(Image.open(tmp_path / "out" / "a.png")), values.argmin(0)[0])


def test_region_based_models_are_read_and_written(tmp_path, make_nnunet):
    labels = {"background": 0, "whole": [1, 2, 3], "core": [2, 3], "inner": 3, "ignore": 4}
    probabilities = make_nnunet(tmp_path / "p", labels=labels, order=[1, 2, 3], box=[[0, 4], [1, 5], [0, 6]])
    cases = open_cases(tmp_path / "p")
    assert (cases.kind, cases.num_classes, cases.class_names) == ("sigmoid", 3, ("whole", "core", "inner"))
    assert (cases.regions.order, cases.ignore) == ((1, 2, 3), 4)
    said = {"whole": [1, 2, 3], "core": [2, 3], "inner": 3}
    assert open_cases(tmp_path / "p", regions=said).regions == cases.regions
    with pytest.raises(InputError, match="says that its outputs are other regions"):
        open_cases(tmp_path / "p", regions={"whole": [1, 2, 3], "core": [2], "inner": 3})
    case = cases.read("c1")
    np.testing.assert_array_equal(case.logits > 0, probabilities["c1"] > 0.5)
    assert not case.mask[:, 0].any()
    assert check(cases).usable
    CaseWriter(cases, tmp_path / "out").write("c1", case.logits / 2, case.logits > 0)
    written = np.load(tmp_path / "out" / "c1.npz")["probabilities"]
    np.testing.assert_array_equal(written > 0.5, probabilities["c1"] > 0.5)
    np.testing.assert_array_equal(written[:, :, 0], 0)  # never predicted, so never touched
    odds = np.sqrt(probabilities["c1"] / (1 - probabilities["c1"]))[:, :, 1:]
    np.testing.assert_allclose(written[:, :, 1:], odds / (1 + odds), rtol=1e-4)
    for name in ("c1.nii.gz", "c1.pkl"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "p" / name).read_bytes()
    CaseWriter(cases, tmp_path / "odds", kind="logits").write("c1", case.logits / 2, case.logits > 0)
    assert (np.load(tmp_path / "odds" / "c1.npz")["probabilities"][:, :, 0] < 0).all()  # a probability of 0 is no logit
    CaseWriter(cases, tmp_path / "moved").write("c1", -case.logits)
    moved = np.load(tmp_path / "moved" / "c1.npz")["probabilities"]
    expected = np.zeros(moved.shape[1:])
    for number, label in enumerate([1, 2, 3]):
        expected[moved[number] > 0.5] = label
    np.testing.assert_array_equal(nibabel.load(tmp_path / "moved" / "c1.nii.gz").get_fdata().T, expected)


@pytest.mark.parametrize(
    ("order", "sentence"),
    [
        (None, "dataset.json defines regions, but no regions_class_order, which says how label maps are made of them."),
        ([1], "regions_class_order is [1], but one label per region is needed, 2 in all."),
        ([2, 1], "regions_class_order has the label 1 for region 'core', but it has the labels 2."),
    ],
)
def test_regions_that_do_not_fit_together_are_refused(order, sentence, tmp_path, make_nnunet):
    make_nnunet(tmp_path / "p", labels={"background": 0, "whole": [1, 2], "core": 2}, order=[1, 2])
    change_json(tmp_path / "p" / "dataset.json", regions_class_order=order)
    with pytest.raises(InputError, match=re.escape(sentence)):
        open_cases(tmp_path / "p")


def test_what_is_no_region(tmp_path, make_nnunet):
    make_nnunet(tmp_path / "p", labels={"background": 0, "a": [1], "b": 2})
    assert open_cases(tmp_path / "p").num_classes == 3
    with pytest.raises(InputError, match="says that its outputs are classes of a softmax, which exclude each other"):
        open_cases(tmp_path / "p", regions={"liver": [1, 2]})


def test_the_ignore_label_of_the_dataset_is_used(tmp_path, make_nnunet):
    make_nnunet(tmp_path / "p", ids=("c1",), labels={"background": 0, "a": 1, "b": 2, "ignore": 3})
    (tmp_path / "l").mkdir()
    labels = np.full((6, 5, 4), 3, np.uint8)
    labels[0] = 1
    nibabel.save(nibabel.Nifti1Image(labels, np.eye(4)), tmp_path / "l" / "c1.nii.gz")
    case = open_cases(tmp_path / "p", tmp_path / "l").read("c1")
    assert (case.labels[..., 0] == 1).all()
    assert (case.labels[..., 1:] == -1).all()
    with pytest.raises(InputError, match=r"ignore is 7, but dataset\.json says 3"):
        open_cases(tmp_path / "p", tmp_path / "l", ignore=7)


def test_all_folds_of_a_model_are_one_collection_that_says_so(tmp_path, make_nnunet):
    model = tmp_path / "Trainer__Plans__3d"
    model.mkdir()
    probabilities = {}
    for fold, ids in enumerate([("c1", "c2"), ("c3",)]):
        probabilities |= make_nnunet(model / f"fold_{fold}" / "validation", ids=ids, json_folder=model)
    make_nnunet(model / "fold_all" / "validation", ids=("c1", "c2", "c3"), json_folder=model)
    cases = open_cases(model, write_labels(tmp_path / "l", probabilities))
    assert cases.ids == ("c1", "c2", "c3")
    np.testing.assert_allclose(cases.read("c3").logits.exp(), probabilities["c3"], atol=1e-6)
    one = open_cases(model / "fold_0" / "validation")  # whose JSON files are two levels up
    assert cases.origin == one.origin == cases.subset(["c1"]).origin == "single folds"
    notes = [problem.text for problem in check(model).problems if problem.severity == "note"]
    assert any(text.startswith("each case is predicted by the network of one fold, and the ensemble") for text in notes)
    make_nnunet(tmp_path / "predicted")
    assert open_cases(tmp_path / "predicted").origin == ""
    assert not any("one fold" in problem.text for problem in check(tmp_path / "predicted").problems)


def test_a_case_in_two_folds_is_refused(tmp_path, make_nnunet):
    for fold in (0, 1):
        make_nnunet(tmp_path / f"fold_{fold}" / "validation", json_folder=tmp_path)
    with pytest.raises(InputError, match="has c1, c2 in more than one fold, but a case is held out by one fold only"):
        open_cases(tmp_path)


def test_fold_all_is_refused_as_calibration_data_and_can_be_calibrated(tmp_path, make_nnunet):
    probabilities = make_nnunet(tmp_path / "fold_all" / "validation", json_folder=tmp_path)
    labels = write_labels(tmp_path / "l", probabilities)
    for folder in (tmp_path, tmp_path / "fold_all" / "validation"):
        with pytest.raises(InputError, match="belongs to fold_all, which predicted its own training cases"):
            open_cases(folder, labels)
    assert len(open_cases(tmp_path / "fold_all" / "validation")) == 2


def test_the_damaged_pkl_of_old_ensembles_is_detected_and_a_members_is_used_instead(tmp_path, make_nnunet):
    make_nnunet(tmp_path / "member", box=BOX)
    probabilities = make_nnunet(tmp_path / "ensemble", box=BOX, plans=False)
    for case_id, values in probabilities.items():
        (tmp_path / "ensemble" / f"{case_id}.pkl").write_bytes(pickle.dumps(values))
    with pytest.raises(CaseError, match=r"holds an array instead of .*nnUNetv2_ensemble before 2\.8\.0"):
        open_cases(tmp_path / "ensemble").read("c1")
    case = open_cases(tmp_path / "ensemble", properties=tmp_path / "member").read("c1")
    assert int(case.mask.sum()) == 2 * 4 * 3


@pytest.mark.parametrize(
    ("damage", "match"),
    [
        (lambda folder: (folder / "c1.pkl").unlink(), r"c1\.pkl is missing, but the box"),
        (lambda folder: (folder / "c1.pkl").write_bytes(b"cos\nsystem\n(S'a'\ntR."), r"c1\.pkl refers to os\.system"),
        (
            lambda folder: (folder / "c1.pkl").write_bytes(pickle.dumps([1, 2])),
            "holds a list, but nnU-Net's properties",
        ),
        (lambda folder: np.savez(folder / "c1.npz", softmax=np.zeros(3)), "was written by nnU-Net version 1"),
        (
            lambda folder: change_json(folder / "dataset.json", labels={"background": 0, "a": 1}),
            r"has shape \(3, 4, 5, 6\), but dataset\.json lists 2 classes",
        ),
    ],
)
def test_files_that_do_not_belong_together_fail_the_case(damage, match, tmp_path, make_nnunet):
    make_nnunet(tmp_path / "p")
    damage(tmp_path / "p")
    with pytest.raises(CaseError, match=match):
        open_cases(tmp_path / "p").read("c1")


def test_a_label_map_that_must_change_and_cannot_be_written_is_refused(tmp_path, make_nnunet, calibrate):
    folder = tmp_path / "p"
    make_nnunet(folder)
    change_json(folder / "dataset.json", file_ending=".mha")
    (folder / "c1.mha").write_bytes(b"label map")
    match = r"c1\.mha is a label map that must change, but only NIfTI and PNG can be written"
    with pytest.raises(CaseError, match=match):
        calibrate(open_cases(folder), tmp_path / "out", "c1", -1.0)
    calibrate(open_cases(folder), tmp_path / "out", "c1")
    assert (tmp_path / "out" / "c1.mha").read_bytes() == b"label map"


def test_heads_are_the_labels_without_ignore_in_the_order_of_their_numbers(tmp_path):
    content = {"labels": {"tumour": 2, "background": 0, "ignore": 3, "liver": 1}, "file_ending": ".mha"}
    (tmp_path / "dataset.json").write_text(json.dumps(content))
    found = load_dataset(tmp_path, None)
    assert found.class_names == ("background", "liver", "tumour")
    assert (found.ignore, found.file_ending, found.transpose_forward) == (3, ".mha", None)


CLASSES = {"background": 0, "a": 1}


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ({"labels": {"0": "background", "1": "liver"}}, "has labels that are not whole numbers"),
        ({"labels": {"background": 0, "liver": 2}}, r"has the labels \[0, 2\] and ignore = None"),
        ({"labels": {"background": 0, "liver": 2, "ignore": 1}}, r"has the labels \[0, 2\] and ignore = 1"),
        ({"labels": {}}, "has no labels"),
        ({"labels": {"background": 0, "a": [1, 2]}}, "defines regions, but no regions_class_order"),
        *(
            ({"labels": CLASSES, "file_ending": ending}, r"has file_ending = .*, but one such as '\.nii\.gz' is needed")
            for ending in ("/../../secret.nii.gz", ".nii\0.gz", "", 5, ".gz/..", "..nii")
        ),
    ],
)
def test_a_dataset_that_cannot_be_used_is_refused(content, match, tmp_path):
    (tmp_path / "dataset.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=match):
        load_dataset(tmp_path, None)


def test_missing_json_files_and_axis_orders_that_are_none_are_refused(tmp_path):
    (tmp_path / "a" / "b" / "c").mkdir(parents=True)
    with pytest.raises(InputError, match=r"has no dataset\.json, nor do the two folders above it"):
        load_dataset(tmp_path / "a" / "b" / "c", None)
    (tmp_path / "dataset.json").write_text(json.dumps({"labels": CLASSES}))
    (tmp_path / "plans.json").write_text(json.dumps({"transpose_forward": [0, 0, 2]}))
    with pytest.raises(InputError, match="has no valid transpose_forward"):
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
        *({"bbox_used_for_cropping": [[0, 1], pair, [0, 4]]} for pair in ([3, 1], [1, 9], [-1, 2], ["a", 2], [1], 1)),
        {"bbox_used_for_cropping": [[0, 1], [1, 3]]},
        {"bbox_used_for_cropping": 7},
        {"bbox_used_for_cropping": None},
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
