"""One small trainer and one small network, for the embedded ensembles and the study of losses."""

from segcal.training.config import TrainConfig
from segcal.training.trainer import Epoch, Trained, train
from segcal.training.unet import UNet
from segcal.training.validation import case_dice, validation_dice

__all__ = ["Epoch", "TrainConfig", "Trained", "UNet", "case_dice", "train", "validation_dice"]
