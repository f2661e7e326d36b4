"""nnU-Net's own code writes what segcal reads, and reads what segcal writes.

Images are read and cropped, and logits exported, with nnU-Net's functions; after calibration its ensembling and its
evaluation must accept the folder. Needs nnunetv2, which the development set-up does not install.
"""

import json
import shutil

import nibabel
import numpy as np
import pytest
import torch

from segcal.cases import CaseWriter, open_cases
from segcal.cases.check import check

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("ignore")]

AFFINE = np.array([[0, -1.5, 0, 20], [0, 0, 2.0, -5], [3.0, 0, 0, 7], [0, 0, 0, 1]])
SHAPE = (9, 12, 14)  # of the NIfTI file


def plans(reader, transpose):
    backward = [transpose.index(axis) for axis in range(3)]
    resampling = {"is_seg": False, "order": 1, "order_z": 0, "force_separate_z": None}
    configuration = {
        "data_identifier": "x",
        "spacing": [1.0, 1.0, 1.0],
        "patch_size": [8, 8, 8],
        "architecture": {},
        "resampling_fn_probabilities": "resample_data_or_seg_to_shape",
        "resampling_fn_probabilities_kwargs": resampling,
    }
    return {
        "dataset_name": "Dataset001_X",
        "plans_name": "nnUNetPlans",
        "image_reader_writer": reader,
        "transpose_forward": list(transpose),
        "transpose_backward": backward,
        "configurations": {"3d_fullres": configuration},
        "label_manager": "LabelManager",
    }


DATASET = {
    "labels": {"background": 0, "liver": 1, "tumour": 2},
    "file_ending": ".nii.gz",
    "channel_names": {"0": "CT"},
    "numTraining": 2,
}


@pytest.fixture(params=[("SimpleITKIO", (0, 1, 2)), ("SimpleITKIO", (2, 0, 1)), ("NibabelIOWithReorient", (1, 2, 0))])
def exported(request, tmp_path, rng, monkeypatch):
    for name in ("nnUNet_raw", "nnUNet_preprocessed", "nnUNet_results"):
        monkeypatch.setenv(name, str(tmp_path / name))
    pytest.importorskip("nnunetv2")
    from nnunetv2.inference.export_prediction import export_prediction_from_logits
    from nnunetv2.preprocessing.cropping.cropping import crop_to_nonzero
    from nnunetv2.utilities.plans_handling.plans_handler import PlansManager

    reader_name, transpose = request.param
    manager = PlansManager(plans(reader_name, transpose))
    reader = manager.image_reader_writer_class()
    for name in ("images", "labels", "predictions", "second"):
        (tmp_path / name).mkdir()
    for case_id in ("c1", "c2"):
        image = np.zeros(SHAPE, np.float32)
        image[2:7, 3:11, 1:9] = 1 + rng.random((5, 8, 8))
        labels = rng.integers(0, 3, SHAPE).astype(np.uint8) * (image > 0)
        for name, values in (("images", image), ("labels", labels)):
            nibabel.save(nibabel.Nifti1Image(values, AFFINE), tmp_path / name / f"{case_id}.nii.gz")
        data, properties = reader.read_images([str(tmp_path / "images" / f"{case_id}.nii.gz")])
        data = data.transpose([0, *[axis + 1 for axis in transpose]])
        properties["shape_before_cropping"] = data.shape[1:]
        cropped, _, box = crop_to_nonzero(data, None)
        properties["bbox_used_for_cropping"] = box
        properties["shape_after_cropping_and_before_resampling"] = cropped.shape[1:]
        for name in ("predictions", "second"):
            logits = torch.from_numpy(rng.normal(size=(3, *cropped.shape[1:])) * 3).half()
            export_prediction_from_logits(
                logits, properties, manager.get_configuration("3d_fullres"), manager, DATASET,
                str(tmp_path / name / case_id), save_probabilities=True, num_threads_torch=1,
            )  # fmt: skip
    for name in ("predictions", "second"):
        (tmp_path / name / "dataset.json").write_text(json.dumps(DATASET))
        (tmp_path / name / "plans.json").write_text(json.dumps(plans(reader_name, transpose)))
    return tmp_path, reader


def test_what_nnunet_exports_is_read_with_its_mask_and_its_labels(exported):
    folder, reader = exported
    cases = open_cases(folder / "predictions", folder / "labels")
    for case in cases:
        expected = np.load(folder / "predictions" / f"{case.id}.npz")["probabilities"]
        assert np.array_equal(case.logits.numpy().argmax(0), expected.argmax(0))
        image, _ = reader.read_images([str(folder / "images" / f"{case.id}.nii.gz")])
        labels, _ = reader.read_seg(str(folder / "labels" / f"{case.id}.nii.gz"))
        assert np.array_equal(case.mask.numpy(), image[0] > 0)
        assert np.array_equal(case.labels[case.mask].numpy(), labels[0][case.mask.numpy()])
    result = check(folder / "predictions", folder / "labels")
    assert {problem.case_id for problem in result.problems} == {None}


def test_nnunet_evaluates_and_ensembles_what_segcal_writes(exported):
    folder, _ = exported
    from nnunetv2.ensembling.ensemble import ensemble_folders
    from nnunetv2.evaluation.evaluate_predictions import compute_metrics_on_folder2

    cases = open_cases(folder / "predictions")
    writer = CaseWriter(cases, folder / "calibrated")
    for case in cases:
        writer.write(case.id, torch.log_softmax(case.logits / 1.7, 0), case.logits.argmax(0))
    scores = {}
    for name in ("predictions", "calibrated"):
        target = folder / name
        compute_metrics_on_folder2(
            str(folder / "labels"),
            str(target),
            str(target / "dataset.json"),
            str(target / "plans.json"),
            num_processes=1,
        )
        scores[name] = json.loads((target / "summary.json").read_text())["foreground_mean"]
        (target / "summary.json").unlink()
    assert scores["calibrated"] == scores["predictions"]
    ensemble_folders([str(folder / "calibrated"), str(folder / "second")], str(folder / "both"), True, 1)
    shutil.copy(folder / "second" / "plans.json", folder / "both")
    pooled = open_cases(folder / "both").read("c1")
    mine = open_cases([folder / "calibrated", folder / "second"], pooling="mean_probs")
    np.testing.assert_allclose(pooled.logits.exp(), mine.read("c1").logits.exp(), atol=1e-6)
    assert torch.equal(pooled.mask, mine.read("c1").mask)


def test_a_label_map_that_segcal_writes_anew_is_the_one_nnunet_would_have_written(exported):
    folder, reader = exported
    cases = open_cases([folder / "predictions", folder / "second"], pooling="mean_probs")
    writer = CaseWriter(cases, folder / "pooled")
    for case in cases:
        writer.write(case.id, case.logits, case.logits.argmax(0))
        found, _ = reader.read_seg(str(folder / "pooled" / f"{case.id}.nii.gz"))
        written = np.load(folder / "pooled" / f"{case.id}.npz")["probabilities"]
        assert np.array_equal(found[0], written.argmax(0))
