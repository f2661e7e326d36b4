"""One small trainer and small networks, for the embedded ensembles and the study of losses."""

from collections.abc import Callable

from torch import nn

from segcal.training.attention_unet import AttentionUNet
from segcal.training.config import TrainConfig
from segcal.training.together import Ended, take_turns
from segcal.training.trainer import Epoch, Steps, Trained, train, train_steps
from segcal.training.unet import UNet
from segcal.training.unet_plus_plus import UNetPlusPlus
from segcal.training.validation import case_dice, validation_dice

BACKBONES: dict[str, Callable[..., nn.Module]] = {
    "unet": UNet,
    "attention_unet": AttentionUNet,
    "unet_plus_plus": UNetPlusPlus,
}

__all__ = [
    "BACKBONES",
    "AttentionUNet",
    "Ended",
    "Epoch",
    "Steps",
    "TrainConfig",
    "Trained",
    "UNet",
    "UNetPlusPlus",
    "case_dice",
    "take_turns",
    "train",
    "train_steps",
    "validation_dice",
]
