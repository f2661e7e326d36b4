"""The losses with the arguments of nnU-Net; nnU-Net finds the trainers and trains with them, where it is installed."""

import importlib.util
import runpy
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

import numpy as np
import pytest
import torch

from segcal.errors import InputError
from segcal.integrations.nnunet_loss import NnunetLoss, trainer_folder
from segcal.losses import LOSSES, make_loss

NAMES = {
    "nnUNetTrainerNACL": "nacl", "nnUNetTrainerMbLS": "mbls", "nnUNetTrainerSVLS": "svls",
    "nnUNetTrainerLS": "label_smoothing", "nnUNetTrainerFocal": "focal", "nnUNetTrainerECP": "ecp",
}  # fmt: skip
ARCHITECTURE = {
    "network_class_name": "dynamic_network_architectures.architectures.unet.PlainConvUNet",
    "arch_kwargs": {
        "n_stages": 3, "features_per_stage": [4, 6, 8], "conv_op": "torch.nn.modules.conv.Conv2d",
        "kernel_sizes": [[3, 3]] * 3, "strides": [[1, 1], [2, 2], [2, 2]], "n_conv_per_stage": [1, 1, 1],
        "n_conv_per_stage_decoder": [1, 1], "conv_bias": True,
        "norm_op": "torch.nn.modules.instancenorm.InstanceNorm2d", "norm_op_kwargs": {"eps": 1e-05, "affine": True},
        "dropout_op": None, "dropout_op_kwargs": None,
        "nonlin": "torch.nn.LeakyReLU", "nonlin_kwargs": {"inplace": True},
    },
    "_kw_requires_import": ["conv_op", "norm_op", "dropout_op", "nonlin"],
}  # fmt: skip
CONFIGURATION = {
    "data_identifier": "nnUNetPlans_2d", "batch_size": 2, "batch_dice": True, "patch_size": [16, 24],
    "spacing": [1.0, 1.0], "normalization_schemes": ["ZScoreNormalization"], "use_mask_for_norm": [False],
    "architecture": ARCHITECTURE,
}  # fmt: skip
PLANS = {
    "dataset_name": "Dataset001_X", "plans_name": "nnUNetPlans", "image_reader_writer": "SimpleITKIO",
    "transpose_forward": [0, 1, 2], "transpose_backward": [0, 1, 2], "label_manager": "LabelManager",
    "continue_training": False, "configurations": {"2d": CONFIGURATION},
}  # fmt: skip
DATASET = {
    "labels": {"background": 0, "liver": 1, "tumour": 2, "ignore": 3}, "channel_names": {"0": "CT"},
    "file_ending": ".nii.gz", "numTraining": 4,
}  # fmt: skip


@pytest.mark.parametrize("name", LOSSES)
def test_it_is_the_loss_on_targets_with_a_channel_axis(name):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 3, 5, 6, 7, generator=generator)
    labels = torch.randint(0, 4, (2, 5, 6, 7), generator=generator)  # 3 is the ignore label
    value = NnunetLoss(name, ignore_label=3)(logits, labels[:, None].float())
    assert value == make_loss(name, ignore_index=3)(logits, labels)


def test_options_reach_the_loss():
    assert NnunetLoss("nacl", weight=0.3, kernel_size=5).loss.weight == 0.3


def test_an_output_thinner_than_the_neighbourhood_is_trained_by_cross_entropy():
    logits, target = torch.randn(1, 3, 2, 6), torch.zeros(1, 1, 2, 6)
    assert NnunetLoss("nacl")(logits, target) == make_loss("ce")(logits, target[:, 0].long())
    assert NnunetLoss("mbls")(logits, target) == make_loss("mbls")(logits, target[:, 0].long())


def test_regions_are_refused():
    with pytest.raises(InputError, match=r"target has shape \(1, 3, 4, 5\).*Region-based training"):
        NnunetLoss("nacl")(torch.zeros(1, 3, 4, 5), torch.zeros(1, 3, 4, 5))


@pytest.mark.filterwarnings("ignore")  # it is imported already
def test_the_folder_of_the_trainers_is_printed(capsys):
    assert (trainer_folder() / "segcal_trainers.py").exists()
    runpy.run_module("segcal.integrations.nnunet_loss", run_name="__main__")
    assert capsys.readouterr().out.strip() == str(trainer_folder())


class Anything(ModuleType):
    """A module that has every name."""

    __path__ = ()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class StandIn(MetaPathFinder, Loader):
    """Stands in for timm where its torchvision is missing: nnU-Net's search imports it for networks not used here."""

    def find_spec(self, name, path=None, target=None):
        return ModuleSpec(name, self, is_package=True) if name.partition(".")[0] == "timm" else None

    def create_module(self, spec):
        return Anything(spec.name)

    def exec_module(self, module):
        pass


@pytest.fixture
def make_trainer(tmp_path, monkeypatch):
    """Return a function that has nnU-Net find a trainer by name and sets it up on the CPU."""
    for name in ("nnUNet_raw", "nnUNet_preprocessed", "nnUNet_results"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("nnUNet_extTrainer", str(trainer_folder()))
    monkeypatch.setenv("nnUNet_compile", "false")
    pytest.importorskip("nnunetv2", reason="nnU-Net is not installed: see the extra `nnunet` in pyproject.toml")
    if importlib.util.find_spec("torchvision") is None:
        monkeypatch.setattr(sys, "meta_path", [StandIn(), *sys.meta_path])
    from nnunetv2.utilities.find_objects import recursive_find_trainer_class_by_name

    def make(name, dataset=DATASET):
        trainer_class = recursive_find_trainer_class_by_name(name)
        trainer = trainer_class({**PLANS}, "2d", 0, dataset, device=torch.device("cpu"))
        monkeypatch.setattr("nnunetv2.training.nnUNetTrainer.nnUNetTrainer.infer_dataset_class", lambda folder: None)
        return trainer

    return make


@pytest.mark.frameworks
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMES)
def test_nnunet_trains_with_the_loss(make_trainer, name):
    trainer = make_trainer(name)
    trainer.initialize()
    torch.manual_seed(0)
    target = torch.randint(0, 4, (2, 1, 16, 24)).to(torch.int16)
    targets = [target[:, :, ::step, ::step] for step in (1, 2)]
    data = torch.nn.functional.one_hot(target[:, 0].long(), 4)[..., 1:2].movedim(-1, 1).float()
    losses = [float(trainer.train_step({"data": data, "target": targets})["loss"]) for _ in range(4)]
    assert np.isfinite(losses).all()
    assert losses[-1] < losses[0]
    assert isinstance(trainer.loss.loss, NnunetLoss)
    # With two resolutions nnU-Net gives the coarse one no weight.
    with torch.no_grad():
        output = trainer.network(data)
        expected = make_loss(NAMES[name], ignore_index=3)(output[0], targets[0][:, 0])
        torch.testing.assert_close(trainer.loss(output, targets), expected)


@pytest.mark.frameworks
@pytest.mark.filterwarnings("ignore")
def test_without_deep_supervision_the_loss_stands_alone(make_trainer):
    trainer = make_trainer("nnUNetTrainerNACL")
    trainer.enable_deep_supervision = False
    assert isinstance(trainer._build_loss(), NnunetLoss)


@pytest.mark.frameworks
@pytest.mark.filterwarnings("ignore")
def test_trainers_refuse_regions(make_trainer):
    labels = {"background": 0, "whole": [1, 2], "core": [2]}
    trainer = make_trainer("nnUNetTrainerNACL", {**DATASET, "labels": labels, "regions_class_order": [1, 2]})
    with pytest.raises(InputError, match="nnUNetTrainerNACL was given a dataset with regions"):
        trainer._build_loss()
