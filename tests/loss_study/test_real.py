import torch

from paper.loss_study.real import CORE, LOSSES, loss_of, plan_real
from segcal.losses import Dice


def test_every_loss_is_made_and_those_with_dice_have_it_once():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 3, 6, 7, generator=generator)
    labels = torch.randint(0, 3, (2, 6, 7), generator=generator)
    values = {name: loss_of(name)(logits, labels) for name in LOSSES}
    assert len(values) == 16
    for name in ("focal", "nacl", "svls", "ce"):
        torch.testing.assert_close(values[f"{name}_dice"] - values[name], Dice()(logits, labels))


def test_the_most_valuable_networks_come_first():
    units = plan_real(("cardiac", "camvid"), LOSSES, ("small", "large"), 3)
    assert len(set(units)) == len(units) == 192
    assert {(unit.size, unit.seed) for unit in units[:32]} == {("small", 0)}
    assert {unit.loss for unit in units[:32]} == set(LOSSES)
    assert {unit.size for unit in units[:96]} == {"small"}
    assert {unit.loss for unit in units[96:132]} == set(CORE)
    assert {unit.seed for unit in units[96:108]} == {0}
