"""From nnU-Net to segcal and back: exported by nnU-Net, fitted and applied by segcal, accepted by nnU-Net's commands.

Needs nnU-Net, which the development set-up does not install. The extra `nnunet` in pyproject.toml has the range of
versions and says how to install it without torchvision; then: pytest -m frameworks
"""

import json
import sys

import nibabel
import numpy as np
import pytest
import torch

from segcal import CaseError, open_cases
from segcal.cli import main

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("ignore")]

AFFINE = np.array([[0, -1.5, 0, 20], [0, 0, 2.0, -5], [3.0, 0, 0, 7], [0, 0, 0, 1]])
SHAPE = (12, 14, 16)  # of the NIfTI file
IDS = ("c1", "c2", "c3", "c4")
DATASET = {
    "labels": {"background": 0, "liver": 1, "tumour": 2},
    "file_ending": ".nii.gz",
    "channel_names": {"0": "CT"},
    "numTraining": 4,
}
CONFIGURATION = {
    "data_identifier": "x",
    "spacing": [1.0, 1.0, 1.0],
    "patch_size": [8, 8, 8],
    "architecture": {},
    "resampling_fn_probabilities": "resample_data_or_seg_to_shape",
    "resampling_fn_probabilities_kwargs": {"is_seg": False, "order": 1, "order_z": 0, "force_separate_z": None},
}
PLANS = {
    "dataset_name": "Dataset001_X",
    "plans_name": "nnUNetPlans",
    "image_reader_writer": "SimpleITKIO",
    "transpose_forward": [2, 0, 1],
    "transpose_backward": [1, 2, 0],
    "configurations": {"3d_fullres": CONFIGURATION},
    "label_manager": "LabelManager",
}


@pytest.fixture
def nnunet(tmp_path, monkeypatch):
    """nnU-Net's modules; it wants its three folders named before it is imported."""
    for name in ("nnUNet_raw", "nnUNet_preprocessed", "nnUNet_results"):
        monkeypatch.setenv(name, str(tmp_path / name))
    return pytest.importorskip("nnunetv2", reason="nnU-Net is not installed: see the extra `nnunet` in pyproject.toml")


@pytest.fixture
def exported(nnunet, tmp_path):
    """Two folders of predictions, exported by nnU-Net's own function, and the labels they were drawn from."""
    from nnunetv2.inference.export_prediction import export_prediction_from_logits
    from nnunetv2.preprocessing.cropping.cropping import crop_to_nonzero
    from nnunetv2.utilities.plans_handling.plans_handler import PlansManager

    rng = np.random.default_rng(4)
    manager = PlansManager(PLANS)
    reader = manager.image_reader_writer_class()
    transpose = PLANS["transpose_forward"]
    for name in ("images", "labels", "first", "second"):
        (tmp_path / name).mkdir()
    for case_id in IDS:
        image = np.zeros(SHAPE, np.float32)
        image[2:10, 3:13, 1:15] = 1 + rng.random((8, 10, 14))
        path = tmp_path / "images" / f"{case_id}.nii.gz"
        nibabel.save(nibabel.Nifti1Image(image, AFFINE), path)
        data, properties = reader.read_images([str(path)])
        data = data.transpose([0, *[axis + 1 for axis in transpose]])
        properties["shape_before_cropping"] = data.shape[1:]
        cropped, _, box = crop_to_nonzero(data, None)
        properties["bbox_used_for_cropping"] = box
        properties["shape_after_cropping_and_before_resampling"] = cropped.shape[1:]
        honest = rng.normal(size=(3, *cropped.shape[1:]))
        for name in ("first", "second"):
            logits = torch.from_numpy(4 * (honest + 0.3 * rng.normal(size=honest.shape))).half()
            export_prediction_from_logits(
                logits, properties, manager.get_configuration("3d_fullres"), manager, DATASET,
                str(tmp_path / name / case_id), save_probabilities=True, num_threads_torch=1,
            )  # fmt: skip
        # Labels that follow far softer probabilities, so that there is something to calibrate.
        drawn = (honest + rng.gumbel(size=honest.shape)).argmax(0)
        whole = np.zeros(data.shape[1:], np.uint8)
        whole[tuple(slice(*pair) for pair in box)] = drawn
        values = whole.transpose(PLANS["transpose_backward"]).transpose(2, 1, 0)
        nibabel.save(nibabel.Nifti1Image(values, AFFINE), tmp_path / "labels" / f"{case_id}.nii.gz")
    for name in ("first", "second"):
        (tmp_path / name / "dataset.json").write_text(json.dumps(DATASET))
        (tmp_path / name / "plans.json").write_text(json.dumps(PLANS))
    return tmp_path


def segcal(*arguments):
    with pytest.raises(SystemExit) as stopped:
        main([str(argument) for argument in arguments])
    assert stopped.value.code == 0


def command(monkeypatch, entry, *arguments):
    """Run the entry point of one of nnU-Net's commands as the shell does."""
    monkeypatch.setattr(sys, "argv", ["nnunet", *(str(argument) for argument in arguments)])
    entry()


def test_nnunets_commands_accept_what_segcal_apply_writes(exported, monkeypatch, capsys):
    from nnunetv2.ensembling.ensemble import entry_point_ensemble_folders
    from nnunetv2.evaluation.evaluate_predictions import evaluate_folder_entry_point

    labels, first, second, out = (exported / name for name in ("labels", "first", "second", "calibrated"))
    segcal("check", first, labels)
    segcal("fit", first, labels, "-o", exported / "cal", "--calibrator", "ts")
    segcal("apply", exported / "cal", first, "-o", out, "--confidence-map")
    capsys.readouterr()
    segcal("evaluate", first, labels, "--calibrator", exported / "cal", "--json", "--metrics", "nll,dice")
    measured = json.loads(capsys.readouterr().out)
    assert measured["after"]["nll"]["value"] < 0.8 * measured["before"]["nll"]["value"]

    scores = {}
    for folder in (first, out):
        jsons = ["-djfile", folder / "dataset.json", "-pfile", folder / "plans.json"]
        command(monkeypatch, evaluate_folder_entry_point, labels, folder, *jsons, "-np", 1)
        scores[folder] = json.loads((folder / "summary.json").read_text())
    assert scores[out]["foreground_mean"] == scores[first]["foreground_mean"]
    assert len(scores[out]["metric_per_case"]) == len(IDS)

    command(
        monkeypatch, entry_point_ensemble_folders, "-i", out, second, "-o", exported / "both", "-np", 1, "--save_npz"
    )
    for case_id in IDS:
        members = [np.load(folder / f"{case_id}.npz")["probabilities"] for folder in (out, second)]
        pooled = np.load(exported / "both" / f"{case_id}.npz")["probabilities"]
        np.testing.assert_allclose(pooled, np.mean(members, axis=0), atol=1e-6)
        assert (exported / "both" / f"{case_id}.nii.gz").is_file()
    with pytest.raises(
        CaseError, match=r"nnUNetv2_ensemble does not copy it\). Pass properties= with a member's folder"
    ):
        open_cases(exported / "both").checked("c1")
    mask = open_cases(exported / "both", properties=first).checked("c1").mask
    assert torch.equal(mask, open_cases(first).checked("c1").mask)


def test_the_confidence_map_lies_on_nnunets_label_map(exported):
    segcal("fit", exported / "first", exported / "labels", "-o", exported / "cal", "--calibrator", "ts")
    segcal("apply", exported / "cal", exported / "first", "-o", exported / "calibrated", "--confidence-map")
    for case_id in IDS:
        label = nibabel.load(exported / "calibrated" / f"{case_id}.nii.gz")
        shown = nibabel.load(exported / "calibrated" / "confidence" / f"{case_id}.nii.gz")
        np.testing.assert_allclose(shown.affine, label.affine, atol=1e-5)
        probabilities = np.load(exported / "calibrated" / f"{case_id}.npz")["probabilities"]
        inside = nibabel.load(exported / "images" / f"{case_id}.nii.gz").get_fdata() > 0
        expected = probabilities.max(0).transpose(2, 1, 0)
        np.testing.assert_allclose(shown.get_fdata()[inside], expected[inside], atol=1e-6)
