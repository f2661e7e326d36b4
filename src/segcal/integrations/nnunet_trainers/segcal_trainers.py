"""nnU-Net trainers that differ from its own by the loss alone.

nnU-Net finds them by their names in the folder of this file (``nnUNet_extTrainer``). Other settings are a subclass of
:class:`SegcalTrainer` with other `loss_name` and `loss_options`, in a folder of your own.
"""

from collections.abc import Mapping

from torch import nn

from segcal.errors import InputError
from segcal.integrations.nnunet_loss import NnunetLoss

try:
    from nnunetv2.training.loss.deep_supervision import DeepSupervisionWrapper
    from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer
except ModuleNotFoundError:  # without nnU-Net this file can be read, and nothing more
    DeepSupervisionWrapper = nnUNetTrainer = object  # noqa: N816


class SegcalTrainer(nnUNetTrainer):
    """The base of the trainers: nnU-Net's weights of resolutions, and a loss of segcal.

    Attributes:
        loss_name: a name of :data:`segcal.LOSSES`.
        loss_options: its options.
    """

    loss_name = "ce"
    loss_options: Mapping[str, object] = {}

    def _build_loss(self) -> nn.Module:
        if self.label_manager.has_regions:
            raise InputError(
                f"{type(self).__name__} was given a dataset with regions, but its loss needs one class a voxel. "
                "Train regions with nnU-Net's own trainer."
            )
        built = super()._build_loss()
        own = NnunetLoss(self.loss_name, self.label_manager.ignore_label, **self.loss_options)
        if not isinstance(built, DeepSupervisionWrapper):
            return own
        built.loss = own
        return built


class nnUNetTrainerNACL(SegcalTrainer):  # noqa: N801 (nnU-Net's names)
    """Neighbour-aware calibration."""

    loss_name = "nacl"


class nnUNetTrainerMbLS(SegcalTrainer):  # noqa: N801
    """Margin-based label smoothing."""

    loss_name = "mbls"


class nnUNetTrainerSVLS(SegcalTrainer):  # noqa: N801
    """Spatially varying label smoothing."""

    loss_name = "svls"


class nnUNetTrainerLS(SegcalTrainer):  # noqa: N801
    """Label smoothing."""

    loss_name = "label_smoothing"


class nnUNetTrainerFocal(SegcalTrainer):  # noqa: N801
    """Focal loss."""

    loss_name = "focal"


class nnUNetTrainerECP(SegcalTrainer):  # noqa: N801
    """Explicit confidence penalty."""

    loss_name = "ecp"
