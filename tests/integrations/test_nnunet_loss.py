import subprocess
import sys

import pytest
import torch

from segcal.errors import InputError
from segcal.integrations.nnunet_loss import NnunetLoss, trainer_folder
from segcal.losses import LOSSES, make_loss


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


def test_the_folder_of_the_trainers_is_printed():
    assert (trainer_folder() / "segcal_trainers.py").exists()
    printed = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "segcal.integrations.nnunet_loss"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert printed.stdout.strip() == str(trainer_folder())
