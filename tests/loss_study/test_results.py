import numpy as np
import pytest

from paper.loss_study.plan import MAIN, Unit
from paper.loss_study.results import Key, Results


def test_a_mean_is_over_cases_then_seeds(rows):
    results = Results(rows)
    key = Key("roads", "svls")
    columns = [
        row["values"]["clean"]["none"]["nll"]
        for row in rows
        if row["unit"] | {"seed": 0}
        == {"task": "roads", "variant": "svls", "seed": 0, "backbone": "unet", "share": 100}
    ]
    assert len(columns) == 2
    assert results.mean(key, "nll") == pytest.approx(np.mean([np.mean(column) for column in columns]))
    found = results.estimate(key, "nll")
    assert found.low <= found.value <= found.high
    assert found.cases == 10


def test_differences_are_paired(rows):
    results = Results(rows)
    found = results.difference(Key("roads", "ce_dice"), Key("roads", "nacl"), "nll")
    assert found.value == pytest.approx(0.02 * (MAIN.index("nacl") - MAIN.index("ce_dice")))
    assert found.low == pytest.approx(found.value)  # the noise is shared, so nothing is left of it
    assert found.worse == 10


def test_seeds_that_are_copies_make_no_interval_narrower(made_up):
    def copies(count):
        rows = []
        for noise, variant in enumerate(("ce", "ce_dice")):
            row = made_up(Unit("roads", variant, noise))
            rows += [row | {"unit": row["unit"] | {"seed": seed}} for seed in range(count)]
        return Results(rows)

    one, three = copies(1), copies(3)
    keys = Key("roads", "ce"), Key("roads", "ce_dice")
    for alone, again in (
        (one.estimate(keys[0], "nll"), three.estimate(keys[0], "nll")),
        (one.difference(*keys, "nll"), three.difference(*keys, "nll")),
    ):
        assert alone.high > alone.low
        assert (again.low, again.high) == pytest.approx((alone.low, alone.high))


def test_what_was_not_trained_is_missing_and_not_zero(made_up):
    results = Results([made_up(Unit("roads", "ce", 0))])
    assert results.mean(Key("roads", "nacl"), "nll") is None
    assert results.estimate(Key("roads", "nacl"), "nll") is None
    assert results.difference(Key("roads", "ce"), Key("roads", "nacl"), "nll") is None
    assert results.cell(Key("roads", "ce"), "nll", "corrupted", "no such calibrator").value is None
    assert results.tasks == ("roads",)


def test_only_common_seeds_are_compared(made_up):
    results = Results([made_up(Unit("roads", "ce", seed)) for seed in (0, 1)] + [made_up(Unit("roads", "nacl", 1))])
    assert results.seeds(Key("roads", "ce"), Key("roads", "nacl")) == [1]
    assert results.difference(Key("roads", "ce"), Key("roads", "nacl"), "nll").cases == 5


def test_ranks_follow_the_order_that_was_made_up(rows):
    results = Results(rows)
    sums, cases = results.sum_ranks(), results.case_ranks()
    for place, variant in enumerate(MAIN, start=1):
        for metric in ("dice", "hd95", "ece_foreground", "cece_foreground"):
            assert sums[variant][metric] == 3 * place
            assert cases[variant][metric] == place


def test_undefined_values_do_not_enter_the_case_ranks(rows):
    broken = [dict(row) for row in rows]
    for row in broken:
        if row["unit"]["variant"] == "ce" and row["unit"]["task"] == "roads":
            values = {**row["values"]["clean"]["none"], "hd95": [None, *row["values"]["clean"]["none"]["hd95"][1:]]}
            row["values"] = {"clean": {**row["values"]["clean"], "none": values}}
    assert Results(broken).case_ranks()["ce"]["hd95"] == 1
