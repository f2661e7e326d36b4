"""nnU-Net finds the trainers in their folder and trains with them on a tiny, made-up batch.

Needs nnU-Net, which the development set-up does not install; see the extra `nnunet` in pyproject.toml.
"""

import importlib.util
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

import numpy as np
import pytest
import torch

from segcal.errors import InputError
from segcal.integrations.nnunet_loss import NnunetLoss, trainer_folder
from segcal.losses import make_loss

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("ignore")]

NAMES = {
    "nnUNetTrainerNACL": "nacl",
    "nnUNetTrainerMbLS": "mbls",
    "nnUNetTrainerSVLS": "svls",
    "nnUNetTrainerLS": "label_smoothing",
    "nnUNetTrainerFocal": "focal",
    "nnUNetTrainerECP": "ecp",
}
ARCHITECTURE = {
    "network_class_name": "dynamic_network_architectures.architectures.unet.PlainConvUNet",
    "arch_kwargs": {
        "n_stages": 3,
        "features_per_stage": [4, 6, 8],
        "conv_op": "torch.nn.modules.conv.Conv2d",
        "kernel_sizes": [[3, 3]] * 3,
        "strides": [[1, 1], [2, 2], [2, 2]],
        "n_conv_per_stage": [1, 1, 1],
        "n_conv_per_stage_decoder": [1, 1],
        "conv_bias": True,
        "norm_op": "torch.nn.modules.instancenorm.InstanceNorm2d",
        "norm_op_kwargs": {"eps": 1e-05, "affine": True},
        "dropout_op": None,
        "dropout_op_kwargs": None,
        "nonlin": "torch.nn.LeakyReLU",
        "nonlin_kwargs": {"inplace": True},
    },
    "_kw_requires_import": ["conv_op", "norm_op", "dropout_op", "nonlin"],
}
PLANS = {
    "dataset_name": "Dataset001_X",
    "plans_name": "nnUNetPlans",
    "image_reader_writer": "SimpleITKIO",
    "transpose_forward": [0, 1, 2],
    "transpose_backward": [0, 1, 2],
    "label_manager": "LabelManager",
    "continue_training": False,
    "configurations": {
        "2d": {
            "data_identifier": "nnUNetPlans_2d",
            "batch_size": 2,
            "batch_dice": True,
            "patch_size": [16, 24],
            "spacing": [1.0, 1.0],
            "normalization_schemes": ["ZScoreNormalization"],
            "use_mask_for_norm": [False],
            "architecture": ARCHITECTURE,
        }
    },
}
DATASET = {
    "labels": {"background": 0, "liver": 1, "tumour": 2, "ignore": 3},
    "channel_names": {"0": "CT"},
    "file_ending": ".nii.gz",
    "numTraining": 4,
}


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


def test_without_deep_supervision_the_loss_stands_alone(make_trainer):
    trainer = make_trainer("nnUNetTrainerNACL")
    trainer.enable_deep_supervision = False
    assert isinstance(trainer._build_loss(), NnunetLoss)


def test_regions_are_refused(make_trainer):
    labels = {"background": 0, "whole": [1, 2], "core": [2]}
    trainer = make_trainer("nnUNetTrainerNACL", {**DATASET, "labels": labels, "regions_class_order": [1, 2]})
    with pytest.raises(InputError, match="nnUNetTrainerNACL was given a dataset with regions"):
        trainer._build_loss()
