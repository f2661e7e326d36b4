import pytest

from segcal.demo.loss_study.plan import MAIN, Unit
from segcal.demo.loss_study.results import Results
from segcal.demo.loss_study.verdict import best_pair, helped, spread, unchanged, verdict


def test_a_loss_helps_where_the_interval_lies_below_zero(rows):
    results = Results(rows)
    # Of the losses, ce alone was made up to be better than ce_dice, on each of three tasks.
    assert helped(results, "nll", "clean", "ts") == (3, 0, 3 * (len(MAIN) - 2))
    assert helped(results, "nll", "corrupted", "none") == (2, 0, 2 * (len(MAIN) - 2))


def test_equal_losses_make_no_clear_difference(made_up):
    results = Results([made_up(Unit("roads", variant, 0), level=0) for variant in MAIN])
    assert helped(results, "nll", "clean", "none") == (0, len(MAIN) - 1, 0)


def test_the_best_pair_is_named(rows):
    variant, pipeline, value = best_pair(Results(rows), "nll", "clean", "roads")
    assert (variant, pipeline) == ("ce", "cms_ap")  # all calibrators were made up alike
    assert 0.1 < value < 0.12


def test_the_spread_is_between_the_best_and_the_worst_loss(rows):
    results = Results(rows)
    assert spread(results, "nll", "clean", "ts", "roads") == pytest.approx(0.02 * (len(MAIN) - 1))
    assert spread(results, "nll", "corrupted", "ts", "tumour") is None
    assert "The losses lie apart by 0.1400 without calibration, 0.1400 with ts" in verdict(results)


def test_a_calibration_that_changed_nothing_is_counted(made_up):
    rows = [made_up(Unit("roads", variant, 0)) for variant in MAIN]
    rows[0]["values"]["clean"]["lts_ti"] = rows[0]["values"]["clean"]["none"]
    assert unchanged(Results(rows), "lts_ti") == (1, len(MAIN))
    assert unchanged(Results(rows), "ts") == (0, len(MAIN))


def test_the_paragraph_follows_from_the_numbers(rows):
    text = verdict(Results(rows))
    assert text.startswith(
        "On the test cases, without calibration after training, a loss has a lower NLL than CE + Dice"
    )
    assert "in 3 of 21 pairs of loss and task and a higher one in 18" in text
    assert "with ts after both, lower in 3 and higher in 18" in text
    assert "Under corruption" in text
    assert "The lowest value on roads is that of CE with cms_ap after it" in text


def test_nothing_is_said_about_what_was_not_measured(made_up):
    assert "Under corruption" not in verdict(Results([made_up(Unit("tumour", v, 0)) for v in MAIN]))
