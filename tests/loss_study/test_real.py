import numpy as np
import pytest
import torch
from PIL import Image

from benchmarks.loss_study.__main__ import main
from benchmarks.loss_study.real import (
    LOSSES,
    RealRow,
    RealUnit,
    loss_of,
    plan_real,
    read_rows,
    real_page,
)
from segcal.losses import Dice


def test_every_loss_is_made_and_those_with_dice_have_it_once():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 3, 6, 7, generator=generator)
    labels = torch.randint(0, 3, (2, 6, 7), generator=generator)
    values = {name: loss_of(name)(logits, labels) for name in LOSSES}
    for name in ("focal", "nacl", "svls"):
        torch.testing.assert_close(values[f"{name}_dice"] - values[name], Dice()(logits, labels))
    torch.testing.assert_close(values["ce_dice"] - values["ce"], Dice()(logits, labels))


def test_processes_share_the_networks():
    options = (("cardiac", "camvid"), ("ce", "ce_dice", "nacl"), ("small", "large"), 3)
    whole = plan_real(*options)
    assert len(set(whole)) == 36
    shared = [unit for number in range(4) for unit in plan_real(*options, (number, 4))]
    assert sorted(unit.name for unit in shared) == sorted(unit.name for unit in whole)
    assert {unit.size for unit in whole[:18]} == {"small"}


def row(loss, seed, shift):
    noise = np.random.default_rng(seed).random(5)
    numbers = {metric: (0.2 + shift + 0.1 * noise).tolist() for metric in ("dice", "nll", "ece", "ba_ece")}
    unit = RealUnit("camvid", loss, "small", seed)
    return RealRow(unit, tuple("abcde"), dict.fromkeys(("none", "ts", "cms_ap"), numbers))


def test_the_page_has_paired_differences_from_the_baseline():
    rows = [row("ce_dice", seed, 0.0) for seed in (0, 1)] + [row("ce", seed, 0.05) for seed in (0, 1)]
    page = real_page([*rows, row("nacl", 0, 0.0)])  # nacl has one seed only: the common seed is compared
    assert "## camvid, small network" in page
    assert "over 1 seeds" in page
    assert page.count("(**+0.0500**)") == 10
    assert "| nacl |" in page
    assert "(+0.0000)" in page


@pytest.fixture
def root(tmp_path):
    rng = np.random.default_rng(0)
    for name in ("images", "labels"):
        (tmp_path / "camvid" / name).mkdir(parents=True)
    for video, count in (("val_0016E5", 80), ("test_Seq05VD", 12)):
        for number in range(count):
            labels = np.kron(rng.integers(0, 12, (2, 3)), np.ones((8, 8))).astype(np.uint8)
            picture = np.repeat((20 * labels)[..., None], 3, 2)
            stem = f"{video}_{number:04d}"
            Image.fromarray(labels).save(tmp_path / "camvid" / "labels" / f"{stem}.png")
            Image.fromarray(picture).save(tmp_path / "camvid" / "images" / f"{stem}.jpg")
    return tmp_path


@pytest.mark.filterwarnings("ignore::segcal.errors.SuspicionWarning")
def test_a_few_steps_on_the_cpu_end_in_a_page_and_go_on_from_there(root, capsys):
    words = ["real", str(root), "--out", str(root / "out"), "--tasks", "camvid", "--losses", "ce", "ce_dice"]
    words += ["--sizes", "small", "--seeds", "1", "--epochs", "1", "--cases", "3"]
    assert main(words) == 0
    rows = read_rows(root / "out")
    assert [row.unit.loss for row in rows] == ["ce", "ce_dice"]
    assert set(rows[0].values) == {"none", "ts", "cms_ap"}
    assert all(len(numbers) == len(rows[0].cases) == 3 for numbers in rows[0].values["ts"].values())
    assert rows[0].values["ts"]["dice"] == rows[0].values["none"]["dice"]
    assert "| ce_dice |" in (root / "out" / "real_losses.md").read_text("utf-8")
    capsys.readouterr()
    assert main(words) == 0
    assert "camvid-ce" not in capsys.readouterr().err  # nothing is trained again
    assert main(["real", str(root / "nowhere"), "--out", str(root / "out2")]) == 2
