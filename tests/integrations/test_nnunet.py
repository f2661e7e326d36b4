"""With nnU-Net itself: a small network with random weights in a folder as nnU-Net writes it, two folds of it."""

import json
import shutil

import numpy as np
import pytest
import torch

import segcal
from segcal.calibrators.per_region import PerRegion
from segcal.cli import main
from segcal.errors import InputError, SuspicionWarning

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("ignore")]

nibabel = pytest.importorskip("nibabel", reason="nibabel is not installed: make setup-frameworks")
LABELS = {"background": 0, "liver": 1, "tumour": 2}
AFFINE = np.array([[0, -1.5, 0, 20], [0, 0, 2.0, -5], [3.0, 0, 0, 7], [0, 0, 0, 1]])
SHAPE = (22, 18, 14)  # of the NIfTI file
ARCHITECTURE = {
    "network_class_name": "dynamic_network_architectures.architectures.unet.PlainConvUNet",
    "arch_kwargs": {
        "n_stages": 2, "features_per_stage": [4, 6], "conv_op": "torch.nn.modules.conv.Conv3d",
        "kernel_sizes": [[3, 3, 3]] * 2, "strides": [[1, 1, 1], [2, 2, 2]], "n_conv_per_stage": [1, 1],
        "n_conv_per_stage_decoder": [1], "conv_bias": True,
        "norm_op": "torch.nn.modules.instancenorm.InstanceNorm3d", "norm_op_kwargs": {"eps": 1e-05, "affine": True},
        "dropout_op": None, "dropout_op_kwargs": None,
        "nonlin": "torch.nn.LeakyReLU", "nonlin_kwargs": {"inplace": True},
    },
    "_kw_requires_import": ["conv_op", "norm_op", "dropout_op", "nonlin"],
}  # fmt: skip
RESAMPLING = {"is_seg": False, "order": 1, "order_z": 0, "force_separate_z": None}
CONFIGURATION = {
    "data_identifier": "nnUNetPlans_3d_fullres", "preprocessor_name": "DefaultPreprocessor", "batch_size": 2,
    "patch_size": [8, 12, 16], "spacing": [2.0, 1.6, 2.5], "normalization_schemes": ["ZScoreNormalization"],
    "use_mask_for_norm": [False], "architecture": ARCHITECTURE, "batch_dice": True,
    "resampling_fn_data": "resample_data_or_seg_to_shape", "resampling_fn_data_kwargs": RESAMPLING,
    "resampling_fn_seg": "resample_data_or_seg_to_shape", "resampling_fn_seg_kwargs": {**RESAMPLING, "is_seg": True},
    "resampling_fn_probabilities": "resample_data_or_seg_to_shape", "resampling_fn_probabilities_kwargs": RESAMPLING,
}  # fmt: skip
PLANS = {
    "dataset_name": "Dataset001_X", "plans_name": "nnUNetPlans", "image_reader_writer": "SimpleITKIO",
    "transpose_forward": [2, 0, 1], "transpose_backward": [1, 2, 0], "label_manager": "LabelManager",
    "configurations": {"3d_fullres": CONFIGURATION}, "foreground_intensity_properties_per_channel": {"0": {}},
}  # fmt: skip


def dataset(labels=LABELS, **more):
    return {**more, "labels": labels, "channel_names": {"0": "MRI"}, "file_ending": ".nii.gz", "numTraining": 2}


@pytest.fixture
def nnunet(tmp_path, monkeypatch):
    """The folders that nnU-Net wants named, with images and a trained model in them."""
    for name in ("raw", "preprocessed", "results"):
        monkeypatch.setenv(f"nnUNet_{name}", str(tmp_path / name))
    # Sums of networks depend on the threads; tests have one.
    monkeypatch.setattr("multiprocessing.cpu_count", lambda: 1)
    pytest.importorskip("nnunetv2", reason="nnU-Net is not installed: make setup-frameworks")
    (tmp_path / "raw" / "Dataset001_X").mkdir(parents=True)
    write_images(tmp_path / "images")
    write_model(tmp_path / "results" / "Dataset001_X" / "nnUNetTrainer__nnUNetPlans__3d_fullres")
    return tmp_path


def write_images(folder):
    rng = np.random.default_rng(0)
    folder.mkdir()
    for name in ("a", "b"):
        image = np.zeros(SHAPE, np.float32)
        image[2:19, 3:16, 1:13] = 1 + rng.random((17, 13, 12))
        nibabel.save(nibabel.Nifti1Image(image, AFFINE), folder / f"{name}_0000.nii.gz")


REGIONS = {"background": 0, "whole": [1, 2, 3], "core": [2, 3], "inner": 3}


@pytest.fixture
def nnunet_regions(nnunet):
    """The same with a model of regions: one sigmoid for each, which only overlap as its random weights have it."""
    model = next((nnunet / "results" / "Dataset001_X").iterdir())
    shutil.rmtree(model)
    write_model(model, dataset(REGIONS, regions_class_order=[1, 2, 3]))
    return nnunet


def write_model(model, described=None):
    """A folder as training leaves it, with two folds."""
    from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer
    from nnunetv2.utilities.plans_handling.plans_handler import PlansManager

    model.mkdir(parents=True)
    (model / "plans.json").write_text(json.dumps(PLANS))
    (model / "dataset.json").write_text(json.dumps(described or dataset()))
    plans = PlansManager(PLANS)
    for fold in range(2):
        torch.manual_seed(fold)
        network = nnUNetTrainer.build_network_architecture(
            plans, plans.get_configuration("3d_fullres"), 1, 3, enable_deep_supervision=False
        )
        for parameter in network.parameters():
            parameter.data.add_(0.5 * torch.randn(parameter.shape))
        (model / f"fold_{fold}").mkdir()
        content = {
            "network_weights": network.state_dict(), "trainer_name": "nnUNetTrainer",
            "init_args": {"configuration": "3d_fullres"}, "inference_allowed_mirroring_axes": (0, 1, 2),
        }  # fmt: skip
        torch.save(content, model / f"fold_{fold}" / "checkpoint_final.pth")


def fitted_for(kind="cms_ap", randomise=None, names=tuple(LABELS), origin=""):
    logits = torch.randn(3, len(names), 9, 8)
    fitted = segcal.fit("ts", logits, logits.argmax(1).roll(1, 0), class_names=names)
    calibrator = fitted.calibrator if randomise is None else randomise(segcal.make_calibrator(kind, len(names)))
    return type(fitted)(calibrator, fitted.certificate, fitted.config, class_names=names, origin=origin)


def seeing_fit(like):
    """Return conic scaling that looks around, fitted to blocks whose middle is more reliable than their edge."""
    rng = np.random.default_rng(3)
    blocks = rng.integers(0, 3, (6, 5, 4)).repeat(7, 1).repeat(6, 2)
    edge = (np.arange(35) % 7 < 2)[:, None] | (np.arange(24) % 6 < 2)
    wrong = rng.random(blocks.shape) < np.where(edge, 0.4, 0.05)
    labels = np.where(wrong, rng.integers(0, 3, blocks.shape), blocks)
    logits = 3 * np.eye(3)[blocks].transpose(0, 3, 1, 2) + rng.normal(size=(6, 3, 35, 24))
    seen = segcal.make_calibrator("conic", 3, contexts=["gap_near", "share_near", "gap_image"])
    found = segcal.fit(seen, logits.astype("float32"), labels, config=segcal.FitConfig(lam=1e-3, nu=1e-3))
    assert float(found.calibrator.hats.detach().std(0).max()) > 0.05
    return type(like)(found.calibrator, found.certificate, found.config, class_names=tuple(LABELS))


def predict(folder, *arguments):
    with pytest.raises(SystemExit) as stopped:
        main(["nnunet", "predict", "-i", str(folder / "images"), "-d", "1", "-c", "3d_fullres", "-device", "cpu",
              *(str(one) for one in arguments)])  # fmt: skip
    return stopped.value.code


def plain(folder, target, folds=(0, 1)):
    from nnunetv2.inference.predict_from_raw_data import nnUNetPredictor

    predictor = nnUNetPredictor(device=torch.device("cpu"), allow_tqdm=False)
    model = next((folder / "results" / "Dataset001_X").iterdir())
    predictor.initialize_from_trained_model_folder(str(model), folds)
    target.mkdir()
    predictor.predict_from_files_sequential(str(folder / "images"), str(target), save_probabilities=True)


@pytest.mark.parametrize(
    ("processes", "kind"), [(0, "cms_ap"), (1, "cms_ap"), (0, "conic"), (1, "conic"), (0, "lts_ti")]
)
def test_it_is_predict_save_and_apply_bit_for_bit(processes, kind, nnunet, randomise, capfd):
    fitted = fitted_for(kind, randomise)
    if kind == "conic":
        fitted = seeing_fit(fitted)
    segcal.save(fitted, nnunet / "cal")
    plain(nnunet, nnunet / "plain")
    segcal.apply(fitted, segcal.open_cases(nnunet / "plain"), nnunet / "applied")
    how = ("-f", 0, 1, "-npp", processes, "-nps", processes, "--calibrator", nnunet / "cal")
    assert predict(nnunet, *how, "-o", nnunet / "direct") == 0
    for name in ("a", "b"):
        direct, applied, before = (np.load(nnunet / part / f"{name}.npz")["probabilities"] for part in
                                   ("direct", "applied", "plain"))  # fmt: skip
        assert np.array_equal(direct, applied)
        assert not np.array_equal(direct, before)
        assert direct.dtype == np.float32
        assert np.array_equal(direct.argmax(0), before.argmax(0))
        maps = [nibabel.load(nnunet / part / f"{name}.nii.gz") for part in ("direct", "plain")]
        assert np.array_equal(maps[0].get_fdata(), maps[1].get_fdata())
        assert (nnunet / "direct" / f"{name}.pkl").read_bytes() == (nnunet / "plain" / f"{name}.pkl").read_bytes()
    cases = segcal.open_cases(nnunet / "direct")
    with pytest.raises(InputError, match="holds predictions that are calibrated already"):
        segcal.apply(fitted, cases, nnunet / "twice")
    capfd.readouterr()
    assert predict(nnunet, *how, "-o", nnunet / "plain") == 2
    assert "which is no calibrated prediction, but results would be mixed with it. Name a new folder." in (
        capfd.readouterr().err
    )


def test_nnunets_commands_take_what_is_written(nnunet, randomise, monkeypatch):
    from nnunetv2.ensembling.ensemble import ensemble_folders
    from nnunetv2.evaluation.evaluate_predictions import compute_metrics_on_folder_simple
    from nnunetv2.postprocessing.remove_connected_components import apply_postprocessing_to_folder

    segcal.save(fitted_for(randomise=randomise), nnunet / "cal")
    assert predict(nnunet, "-npp", 0, "-nps", 0, "-f", 0, "--calibrator", nnunet / "cal", "-o", nnunet / "direct") == 0
    plain(nnunet, nnunet / "plain")
    ensemble_folders([str(nnunet / "direct"), str(nnunet / "plain")], str(nnunet / "both"), True, num_processes=1)
    for name in ("a", "b"):
        members = [np.load(nnunet / part / f"{name}.npz")["probabilities"] for part in ("direct", "plain")]
        pooled = np.load(nnunet / "both" / f"{name}.npz")["probabilities"]
        np.testing.assert_allclose(pooled, np.mean(members, axis=0), atol=1e-6)
    (nnunet / "labels").mkdir()
    for name in ("a", "b"):
        shutil.copy(nnunet / "plain" / f"{name}.nii.gz", nnunet / "labels" / f"{name}.nii.gz")
    compute_metrics_on_folder_simple(str(nnunet / "labels"), str(nnunet / "direct"), [1, 2], num_processes=1)
    assert len(json.loads((nnunet / "direct" / "summary.json").read_text())["metric_per_case"]) == 2
    apply_postprocessing_to_folder(str(nnunet / "direct"), str(nnunet / "post"), [], [], num_processes=1)
    assert sorted(path.name for path in (nnunet / "post").glob("*.nii.gz")) == ["a.nii.gz", "b.nii.gz"]


def test_regions_are_calibrated_and_nnunets_commands_take_them(nnunet_regions, randomise, capfd):
    from nnunetv2.ensembling.ensemble import ensemble_folders
    from nnunetv2.evaluation.evaluate_predictions import compute_metrics_on_folder2

    folder = nnunet_regions
    plain(folder, folder / "plain")
    cases = segcal.open_cases(folder / "plain")
    assert (cases.kind, cases.regions.order, cases.class_names) == ("sigmoid", (1, 2, 3), ("whole", "core", "inner"))
    inner = [randomise(segcal.make_calibrator("conic_class", 2), seed=number) for number in range(3)]
    calibrator = PerRegion(cases.regions, inner).eval().requires_grad_(False)
    some = segcal.fit("ts", torch.randn(3, 2, 9, 8), torch.randint(2, (3, 9, 8)))
    fitted = type(some)(calibrator, some.certificate, some.config, class_names=cases.class_names, kind="sigmoid")
    segcal.save(fitted, folder / "cal")
    segcal.apply(fitted, cases, folder / "applied")
    how = ("-f", 0, 1, "-npp", 0, "-nps", 0, "--calibrator", folder / "cal")
    assert predict(folder, *how, "-o", folder / "direct") == 0
    (folder / "labels").mkdir()
    ensemble_folders([str(folder / "applied"), str(folder / "plain")], str(folder / "both"), True, num_processes=1)
    for name in ("a", "b"):
        direct, applied, before, pooled = (np.load(folder / part / f"{name}.npz")["probabilities"] for part in
                                           ("direct", "applied", "plain", "both"))  # fmt: skip
        assert np.array_equal(direct, applied)
        assert not np.array_equal(applied, before)
        assert np.array_equal(applied > 0.5, before > 0.5)
        assert 0 < (before > 0.5).mean() < 1
        for one, other in cases.regions.nested:
            held = before[one] <= before[other]
            assert (applied[one] <= applied[other])[held].all()
        np.testing.assert_allclose(pooled, (applied + before) / 2, atol=1e-6)
        maps = [nibabel.load(folder / part / f"{name}.nii.gz").get_fdata() for part in ("applied", "plain", "direct",
                                                                                       "both")]  # fmt: skip
        assert all(np.array_equal(one, maps[0]) for one in maps)
        shutil.copy(folder / "plain" / f"{name}.nii.gz", folder / "labels" / f"{name}.nii.gz")
    compute_metrics_on_folder2(str(folder / "labels"), str(folder / "applied"), str(folder / "applied/dataset.json"),
                               str(folder / "applied/plans.json"), num_processes=1)  # fmt: skip
    summary = json.loads((folder / "applied" / "summary.json").read_text())
    assert set(summary["mean"]) == {"(1, 2, 3)", "(2, 3)", "3"}
    assert all(one["Dice"] == 1 for one in summary["mean"].values() if one["n_ref"])
    capfd.readouterr()
    segcal.save(fitted_for(names=("a", "b", "c")), folder / "softmax")
    assert predict(folder, *how[:-1], folder / "softmax", "-o", folder / "none") == 2
    assert "the model has the regions whole, core, inner, but the calibrator was fitted for classes" in (
        capfd.readouterr().err
    )


def test_fitting_from_the_folds_says_that_they_are_not_the_ensemble(nnunet, capfd):
    model = next((nnunet / "results" / "Dataset001_X").iterdir())
    labels = nnunet / "preprocessed" / "Dataset001_X" / "gt_segmentations"
    labels.mkdir(parents=True)
    arguments = ["nnunet", "fit", "-d", "1", "-c", "3d_fullres", "--name", "ts", "--calibrator", str(nnunet / "cal")]
    with pytest.raises(SystemExit):
        main(arguments)
    assert (
        "has no fold_*/validation/*.npz, but probabilities of held-out cases are needed. Run" in capfd.readouterr().err
    )
    plain(nnunet, nnunet / "plain", (0,))
    for fold, name in enumerate(("a", "b")):
        validation = model / f"fold_{fold}" / "validation"
        validation.mkdir()
        for ending in (".npz", ".pkl", ".nii.gz"):
            shutil.copy(nnunet / "plain" / f"{name}{ending}", validation)
        truth = nibabel.load(nnunet / "plain" / f"{name}.nii.gz")
        drawn = np.random.default_rng(fold).integers(0, 3, truth.shape)
        values = np.where(np.random.default_rng(7).random(truth.shape) < 0.7, truth.get_fdata(), drawn).astype(np.uint8)
        nibabel.save(nibabel.Nifti1Image(values, truth.affine), labels / f"{name}.nii.gz")
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 0
    said = capfd.readouterr()
    assert "the ensemble of all folds has other confidences" in said.err
    assert segcal.load(nnunet / "cal").calibration_ids == ("a", "b")
    how = ("-npp", 0, "-nps", 0, "--calibrator", nnunet / "cal")
    assert predict(nnunet, *how, "-f", 0, 1, "-o", nnunet / "ensemble") == 0
    assert "the calibrator was fitted on predictions of single folds" in capfd.readouterr().err
    assert predict(nnunet, *how, "-f", 0, "-o", nnunet / "single") == 0
    assert "warning" not in capfd.readouterr().err


def test_what_does_not_fit_is_one_sentence(nnunet, randomise):
    from segcal.integrations.nnunet import CalibratedPredictor

    model = next((nnunet / "results" / "Dataset001_X").iterdir())

    def start(calibrator):
        CalibratedPredictor(calibrator, device=torch.device("cpu")).initialize_from_trained_model_folder(
            str(model), (0,)
        )

    with pytest.raises(InputError, match="the model has 3 classes, but the calibrator was fitted for 4"):
        start(segcal.make_calibrator("ts", 4))
    with pytest.raises(
        InputError, match=r"has the classes background, liver, tumour, .* fitted for background, tumour"
    ):
        start(fitted_for(names=("background", "tumour", "liver")))
    with pytest.raises(InputError, match=r"is lts, which sees the image, but nnU-Net hands over scores alone\. Use"):
        start(segcal.make_calibrator("lts", 3, image_channels=1))
    with pytest.raises(
        InputError, match="is vs, which sees the offset of the logits, but nnU-Net's probabilities have"
    ):
        start(segcal.make_calibrator("vs", 3))
    with pytest.raises(InputError, match="is conic, which sees how much the members disagree, but nnU-Net averages"):
        start(segcal.make_calibrator("conic", 3, contexts=["disagreement"]))
    with pytest.warns(SuspicionWarning, match="fitted on predictions of single folds"):
        CalibratedPredictor(
            fitted_for(origin="single folds"), device=torch.device("cpu")
        ).initialize_from_trained_model_folder(str(model), (0, 1))
    regions = {"background": 0, "whole": [1, 2], "core": [2], "edge": [1]}
    (model / "dataset.json").write_text(json.dumps({**dataset(regions), "regions_class_order": [1, 2, 1]}))
    with pytest.raises(InputError, match="the model has the regions whole, core, edge, but the calibrator was fitted"):
        start(segcal.make_calibrator("ts", 3))
