import json
import zipfile

import msgspec
import numpy as np
import pytest

from paper.loss_study.__main__ import main
from paper.loss_study.real import RealRow, RealUnit
from paper.loss_study.real_page import Facts, is_clear, real_page, tables_of
from segcal.summary import Interval

pytestmark = pytest.mark.usefixtures("few_draws")
FACTS = Facts("a device", "2", 540, 0, recorded=True)
LARGE = {"ce_dice": 0.0, "ce": 0.15, "nacl": 0.0, "nacl_dice": 0.01}
GROUPS = (0, 0, 1, 1, 2, 2, 3, 3)


def row(loss, seed, shift, task="camvid", size="small"):
    """Return a network whose numbers before calibration are shifted, and after it are not."""
    noise = 0.1 * np.random.default_rng(seed).random(len(GROUPS))
    before = {metric: (0.2 + shift + noise).tolist() for metric in ("dice", "nll", "ece", "ba_ece")}
    after = {metric: (0.2 + shift / 10 + noise).tolist() for metric in before}
    return RealRow(RealUnit(task, loss, size, seed), 9, GROUPS, {"none": before, "ts": after, "conic": after}, {})


def rows(size="small"):
    shifts = {"ce_dice": 0.0, "ce": 0.05, "nacl": 0.0, "nacl_dice": 0.02}
    return [row(loss, seed, shift, size=size) for loss, shift in shifts.items() for seed in (0, 1)]


def test_means_and_differences_are_those_of_groups():
    (table,) = tables_of(rows())
    values = [row("ce", seed, 0.05).values["none"]["nll"] for seed in (0, 1)]
    assert table.mean("ce", "none", "nll").value == pytest.approx(np.mean(values))
    gap = table.gap("ce", "ce_dice", "none", "nll")
    assert gap.value == pytest.approx(0.05)
    assert gap.low == pytest.approx(0.05)  # the same shift in every case: pairing leaves no spread
    assert [len(column) for column in table.columns("ce", "none", "nll")] == [4, 4]
    first = np.array(values[0][:2]).mean()
    assert table.columns("ce", "none", "nll")[0][0] == pytest.approx(first)


def test_seeds_that_are_copies_make_no_interval_narrower():
    def copies(count):
        noisy = [
            msgspec.structs.replace(row(loss, noise, 0.0), unit=RealUnit("camvid", loss, "small", seed))
            for noise, loss in enumerate(("ce", "ce_dice"))
            for seed in range(count)
        ]
        return tables_of(noisy)[0]

    one, three = copies(1), copies(3)
    for alone, again in (
        (one.mean("ce", "none", "nll"), three.mean("ce", "none", "nll")),
        (one.gap("ce", "ce_dice", "none", "nll"), three.gap("ce", "ce_dice", "none", "nll")),
    ):
        assert alone.high > alone.low
        assert (again.low, again.high) == pytest.approx((alone.low, alone.high))


def test_what_losses_differ_by_is_the_deviation_of_their_means():
    (table,) = tables_of(rows())
    assert table.spread("none", "nll") == pytest.approx(np.std([0.0, 0.05, 0.0, 0.02]))
    assert table.spread("ts", "nll") == pytest.approx(np.std([0.0, 0.005, 0.0, 0.002]))


def test_a_loss_with_fewer_seeds_costs_the_others_none():
    (table,) = tables_of([*rows(), row("svls", 0, 0.1), row("ce", 2, 0.0)])
    assert table.seeds == [0, 1]
    assert table.losses == ["ce", "ce_dice", "nacl", "nacl_dice"]


def test_a_gap_is_clear_where_its_interval_leaves_out_zero():
    assert is_clear(Interval(1.0, 0.5, 2.0))
    assert not is_clear(Interval(1.0, -0.5, 2.0))
    assert not is_clear(Interval(None, None, None))


def test_the_page_says_who_is_better_and_what_is_left_after_calibration():
    page = real_page([*rows(), *rows("large")], [FACTS])
    assert "| Street scenes, small networks | Dice | `ce`, `nacl_dice` | none |" in page
    assert "| Street scenes, small networks | NLL as trained | none | `ce`, `nacl_dice` |" in page
    # Of the pairs, ce_dice is below ce in everything and nacl_dice above nacl, in both sizes.
    assert (
        "Dice: clearly better in 2, clearly worse in 2. BA-ECE as trained: clearly better in 2, clearly worse" in page
    )
    assert "Of 6 losses beside `ce_dice`" in page
    assert "NLL 4 (as trained), 4 (ts), 4 (conic)" in page
    assert "Street scenes, small networks: NLL +0.0000 [+0.0000, +0.0000] (`ce_dice`)" in page
    assert "0.0205 | 0.0020 (10%) | 0.0020 (10%)" in page
    assert "| Street scenes, small networks | nacl | **+0.0200 [+0.0200, +0.0200]** |" in page
    assert "9 minutes on a device" in page
    # nacl equals ce_dice; the two others are worse in what should be low.
    assert "clearly worse than `ce_dice`: `nacl` (clearly better in 0 of 20)." in page


def test_large_networks_stand_beside_small_ones_with_clear_differences_bold():
    grown = [row(loss, seed, shift, size="large") for loss, shift in LARGE.items() for seed in (0, 1)]
    page = real_page([*rows(), *grown], [FACTS])
    assert "4 losses, with large networks: Dice higher in 1 (1 clearly) and lower in 1 (1 clearly);" in page
    before, after = (
        np.mean([row("ce", seed, shift).values["none"]["dice"] for seed in (0, 1)]) for shift in (0.05, 0.15)
    )
    assert f"| street scenes | ce | **{before:.4f} → {after:.4f}** |" in page
    same = np.mean([row("ce_dice", seed, 0.0).values["none"]["dice"] for seed in (0, 1)])
    assert f"| street scenes | ce_dice | {same:.4f} → {same:.4f} |" in page


def test_sizes_with_other_seeds_are_not_compared():
    assert "## Large networks" not in real_page([*rows(), *(one for one in rows("large") if one.unit.seed)], [FACTS])


@pytest.mark.parametrize(
    ("missing", "said"),
    [(0, "No network of the study is missing."), (2, "Of 10 networks 2 were not finished in the time; a loss that")],
)
def test_the_page_says_how_many_networks_are_missing(missing, said):
    page = real_page(rows(), [msgspec.structs.replace(FACTS, missing=missing)])
    assert said in page
    assert ("not finished" in page) == bool(missing)


def test_one_command_writes_the_page(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for one in rows():
            archive.writestr(f"{one.unit.name}.json", json.dumps({"schema": 1, **msgspec.to_builtins(one)}))
        archive.writestr("facts.json", msgspec.json.encode(FACTS))
        archive.writestr("camvid-ml1_ace-small-0.error.txt", "why")
    (tmp_path / "a.md").write_text("In words.\n")
    assert main(["real-page", str(tmp_path / "a.zip"), "--docs", str(tmp_path)]) == 0
    page = (tmp_path / "losses_real.md").read_text("utf-8")
    assert page.startswith("# Losses on real data\n\nIn words.\n\n## What was done\n")
    assert "## Street scenes, small networks" in page
