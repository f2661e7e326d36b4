"""The losses of segcal where nnU-Net trains: targets with a channel axis, its ignore label, outputs of all resolutions.

``nnUNet_extTrainer=FOLDER nnUNetv2_train DATASET CONFIGURATION FOLD -tr nnUNetTrainerNACL`` trains with nacl; FOLDER is
what ``python -m segcal.integrations.nnunet_loss`` prints, and the trainers in it are listed in
:mod:`segcal.integrations.nnunet_trainers.segcal_trainers`.
"""

from pathlib import Path

from torch import Tensor, nn

from segcal.errors import InputError
from segcal.losses import make_loss
from segcal.types import IGNORED, Logits


class NnunetLoss(nn.Module):
    """A loss of segcal with the arguments that nnU-Net gives it.

    With deep supervision nnU-Net also trains coarse outputs. One that is thinner than the neighbourhood of a loss has
    no neighbourhoods, and is trained by cross-entropy alone.

    Args:
        name: a name of :data:`segcal.LOSSES`.
        ignore_label: nnU-Net's ignore label, or None.
        options: of the loss.
    """

    def __init__(self, name: str, ignore_label: int | None = None, **options: object) -> None:
        super().__init__()
        ignore_index = IGNORED if ignore_label is None else ignore_label
        self.loss = make_loss(name, ignore_index=ignore_index, **options)
        self.without_neighbours = make_loss("ce", ignore_index=ignore_index)

    def forward(self, logits: Logits, target: Tensor) -> Tensor:
        """Return the loss of logits ``(batch, classes, *space)`` and a target ``(batch, 1, *space)`` of any type."""
        if target.ndim != logits.ndim or target.shape[1] != 1:
            raise InputError(
                f"target has shape {tuple(target.shape)}, but nnU-Net's label maps are (batch, 1, *space) for logits "
                f"of shape {tuple(logits.shape)}. Region-based training has no class labels: use its own loss."
            )
        smallest = min(logits.shape[2:])
        thin = smallest < getattr(self.loss, "kernel_size", 0)
        return (self.without_neighbours if thin else self.loss)(logits, target[:, 0].long())


def trainer_folder() -> Path:
    """Return the folder that ``nnUNet_extTrainer`` must name."""
    return Path(__file__).parent / "nnunet_trainers"


if __name__ == "__main__":
    print(trainer_folder())
