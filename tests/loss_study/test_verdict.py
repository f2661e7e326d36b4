import pytest

from paper.loss_study.plan import MAIN, Unit
from paper.loss_study.results import Key, Results
from paper.loss_study.verdict import (
    Counts,
    best_pair,
    calibrated,
    compared,
    counted,
    spread,
    spread_table,
    unchanged,
    verdict,
)

OTHERS = len(MAIN) - 2


def test_a_loss_is_better_where_the_interval_lies_below_zero(rows):
    results = Results(rows)
    # Of the losses, ce alone was made up to be better than ce_dice, on each of three tasks.
    assert counted(compared(results, "nll", "clean", "ts")) == (3, 0, 3 * OTHERS)
    assert counted(compared(results, "nll", "corrupted", "none")) == (2, 0, 2 * OTHERS)
    assert compared(results, "nll", "clean", "ts")["roads", "ce"] == -1
    assert compared(results, "nll", "clean", "ts")["roads", "nacl"] == 1


def test_equal_losses_make_no_clear_difference(made_up):
    results = Results([made_up(Unit("roads", variant, 0), level=0) for variant in MAIN])
    assert counted(compared(results, "nll", "clean", "none")) == (0, len(MAIN) - 1, 0)


def test_a_calibration_is_compared_with_none(rows):
    results = Results(rows)
    # Every calibrator was made up to lower every metric by 0.1.
    assert calibrated(results, "nll", "clean", "ts") == (24, 0, 0)
    assert results.change(Key("roads", "ce"), "nll", "clean", "ts").value == pytest.approx(-0.1)
    assert results.change(Key("roads", "ce"), "nll", "clean", "no such") is None


def test_the_best_pair_is_named(rows):
    variant, pipeline, value = best_pair(Results(rows), "nll", "clean", "roads")
    assert (variant, pipeline) == ("ce", "cms_ap")  # all calibrators were made up alike
    assert 0.1 < value < 0.12


def test_the_spread_is_between_the_best_and_the_worst_loss(rows):
    results = Results(rows)
    assert spread(results, "nll", "clean", "ts", "roads") == pytest.approx(0.02 * (len(MAIN) - 1))
    assert spread(results, "nll", "corrupted", "ts", "tumour") is None
    assert "| roads | 0.1400 | 0.1400 | 0.1400 | 0.1400 | CE, cms_ap |" in spread_table(results, "nll").to_markdown()


def test_a_calibration_that_changed_nothing_is_counted(made_up):
    rows = [made_up(Unit("roads", variant, 0)) for variant in MAIN]
    rows[0]["values"]["clean"]["lts_ti"] = rows[0]["values"]["clean"]["none"]
    assert unchanged(Results(rows), "lts_ti") == (1, len(MAIN))
    assert unchanged(Results(rows), "ts") == (0, len(MAIN))


def test_where_losses_stay_apart_it_is_said(rows):
    first, second = verdict(Results(rows)).splitlines()
    assert first.startswith(
        "- **On cases like those of training.** As trained, 21 of 21 pairs of loss and task differ clearly from "
        "CE + Dice in NLL (3 lower, 18 higher); calibrated alike, 21 with ts (3, 18), 21 with cms_ap (3, 18) and 21 "
        "with lts_ti (3, 18). So the choice of a loss still matters after calibration; better with every calibrator: "
        "CE on roads, CE on streets and CE on tumour."
    )
    assert "ts in 24 of 24 (raises it in 0)" in first
    assert second.startswith("- **Under corruption.** As trained, 14 of 14 pairs")


def alike_after(rows, names):
    """Let some calibrators make all losses alike."""
    for row in rows:
        clean = row["values"]["clean"]
        for name in names:
            clean[name] = {metric: [0.1] * len(column) for metric, column in clean["none"].items()}
        row["values"] = {"clean": clean}
    return rows


def two_seeds(made_up):
    return [made_up(Unit("roads", variant, seed)) for variant in MAIN for seed in (0, 1)]


def test_where_calibration_makes_losses_alike_it_is_said(made_up):
    rows = alike_after(two_seeds(made_up), ("ts", "cms_ap", "lts_ti"))
    assert (
        "calibrated alike, 0 with ts (0, 0), 0 with cms_ap (0, 0) and 0 with lts_ti (0, 0). So a calibrator fitted "
        "after training does most of what a loss does, and no loss stays better with every calibrator."
    ) in verdict(Results(rows))


def test_where_some_calibrators_do_they_are_named(made_up):
    rows = two_seeds(made_up)
    assert "So ts does most of what a loss does, the others less" in verdict(Results(alike_after(rows, ("ts",))))
    rows = two_seeds(made_up)
    assert "So ts and lts_ti do most of what" in verdict(Results(alike_after(rows, ("ts", "lts_ti"))))


def test_where_nothing_differs_there_is_nothing_to_take_over(made_up):
    rows = [made_up(Unit("roads", variant, seed), level=0) for variant in MAIN for seed in (0, 1)]
    assert "So there is nothing that a calibrator could take over" in verdict(Results(rows))


def test_one_seed_is_no_basis_for_a_conclusion(made_up):
    rows = [made_up(Unit("roads", variant, 0)) for variant in MAIN]
    assert verdict(Results(rows)) == "One network of each kind is no basis for a conclusion: train more seeds."


def test_nothing_is_said_about_what_was_not_measured(made_up):
    rows = [made_up(Unit("tumour", variant, seed)) for variant in MAIN for seed in (0, 1)]
    assert verdict(Results(rows)).startswith("- **On cases like those of training.**")
    assert "Under corruption" not in verdict(Results(rows))


def test_what_differs_clearly_is_better_or_worse():
    assert Counts(2, 5, 3).clear == 5
