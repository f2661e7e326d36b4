"""Numbers, tables, figures and rows of the board are those of made-up networks."""

from pathlib import Path

import msgspec
import numpy as np
import pytest

from paper.board import read_rows
from paper.loss_study import study_rows, tables
from paper.loss_study.__main__ import main
from paper.loss_study.draws import shared_draws
from paper.loss_study.plan import MAIN, SHARES, Unit, plan_units
from paper.loss_study.real import RealRow, RealUnit
from paper.loss_study.real_rows import Facts, is_clear, read_real, real_rows, tables_of
from paper.loss_study.results import Key, Results, read_by_pages
from paper.loss_study.rows import collect, read_lines, write_picture, write_row
from paper.loss_study.verdict import best_pair, calibrated, compared, counted, spread, spread_table, unchanged
from segcal.summary import Interval

pytest.importorskip("matplotlib", reason="matplotlib is not installed")
from paper.loss_study import figures

pytestmark = pytest.mark.usefixtures("few_draws")
ROOT = Path(__file__).parents[2]
LINES = ROOT / "paper" / "results" / "losses.jsonl"
OTHERS = len(MAIN) - 2


def test_all_seeds_have_the_same_groups_and_tables_of_one_shape_the_same_draws():
    draws = shared_draws([np.zeros(5)] * 3)
    assert draws.groups == 5
    assert all(np.array_equal(index, draws.index[0]) for index in draws.index)
    values = [np.zeros(4), np.ones(4)]
    assert shared_draws(values) is shared_draws(values[::-1])


def test_means_are_over_cases_then_seeds_and_differences_are_paired(rows):
    results, key = Results(rows), Key("roads", "svls")
    columns = [row["values"]["clean"]["none"]["nll"] for row in results.rows[key].values()]
    assert results.mean(key, "nll") == pytest.approx(np.mean([np.mean(column) for column in columns]))
    found = results.estimate(key, "nll")
    assert found.low <= found.value <= found.high
    assert found.cases == 10
    found = results.difference(Key("roads", "ce_dice"), Key("roads", "nacl"), "nll")
    assert found.value == pytest.approx(0.02 * (MAIN.index("nacl") - MAIN.index("ce_dice")))
    assert found.low == pytest.approx(found.value)  # the noise is shared, so nothing is left of it
    assert found.worse == 10
    # Every calibrator was made up to lower every metric by 0.1.
    assert results.change(Key("roads", "ce"), "nll", "clean", "ts").value == pytest.approx(-0.1)
    assert results.change(Key("roads", "ce"), "nll", "clean", "no such") is None


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


def test_what_was_not_trained_is_missing_and_only_common_seeds_are_compared(made_up):
    first, second = Key("roads", "ce"), Key("roads", "nacl")
    results = Results([made_up(Unit("roads", "ce", 0))])
    assert results.mean(second, "nll") is results.estimate(second, "nll") is results.difference(first, second, "nll")
    assert results.mean(second, "nll") is None
    assert results.cell(first, "nll", "corrupted", "no such calibrator").value is None
    assert "| NACL | — |" in tables.main_table(results, "roads").to_markdown()
    assert not [one for one in study_rows.rows(results) if "rank" in one.metric]  # which need every loss
    results = Results([made_up(Unit("roads", "ce", seed)) for seed in (0, 1)] + [made_up(Unit("roads", "nacl", 1))])
    assert results.seeds(first, second) == [1]
    assert results.difference(first, second, "nll").cases == 5
    facts = [int(one.value) for one in study_rows.facts(results)][:3]
    assert facts == [3, 1, 2]  # networks, and the fewest and the most seeds of a kind


def test_ranks_follow_the_order_that_was_made_up_without_undefined_values(rows):
    results = Results(rows)
    sums, cases = results.sum_ranks(), results.case_ranks()
    for place, variant in enumerate(MAIN, start=1):
        for metric in ("dice", "hd95", "ece_foreground", "cece_foreground"):
            assert (sums[variant][metric], cases[variant][metric]) == (3 * place, place)
    for row in rows:
        if row["unit"]["variant"] == "ce" and row["unit"]["task"] == "roads":
            row["values"]["clean"]["none"]["hd95"][0] = None
    assert Results(rows).case_ranks()["ce"]["hd95"] == 1


def test_every_table_has_a_row_for_every_loss_and_the_best_is_bold(rows):
    results = Results(rows)
    made = [
        tables.main_table(results, "roads"),
        tables.rank_table(results),
        tables.union_table(results),
        tables.share_table(results, "dice"),
        tables.post_hoc_table(results, "roads", "corrupted", "nll"),
    ]
    for table in made:
        assert [row.title for row in table.rows] == [tables.TITLES[variant] for variant in MAIN]
        assert all(cell.value is not None for row in table.rows for cell in row.cells)
    text = tables.main_table(results, "tumour").to_markdown()
    assert next(line for line in text.splitlines() if line.startswith("| CE |")).count("**") == 2 * 5
    ablations = (tables.ablation_table, tables.sensitivity_table, tables.sigma_table, tables.backbone_table)
    assert [len(table(results).rows) for table in ablations] == [4, 18, 3, 12]
    first, *_, last = tables.gain_table(results, "roads", "clean", "nll").rows
    assert first.cells[1].value < 0 < last.cells[1].value  # against ce_dice


def test_variants_are_compared_in_percent_and_on_the_seeds_that_all_have(made_up):
    levels = {"svls_1": 5, "nacl_gaussian_1": 0}
    results = Results([made_up(Unit("roads", name, 0), level=level) for name, level in levels.items()])
    dice, ece = (cell.value for cell in tables.sigma_table(results).rows[0].cells)
    old, new = (results.mean(tables.Key("roads", name), "ece_foreground") for name in levels)
    assert dice > 0
    assert ece == pytest.approx(100 * (old - new) / old)
    assert ece > 0
    rows = [made_up(Unit("roads", "nacl", 0), level=0), made_up(Unit("roads", "nacl", 1), level=9)]
    results = Results([*rows, made_up(Unit("roads", "nacl_l2", 0), level=0)])
    plain, _, squared, softmax = tables.ablation_table(results).rows
    assert plain.cells == squared.cells
    assert softmax.cells[0].value is None
    assert "the 1 seed that all of these have" in tables.ablation_table(results).to_markdown()
    rows = [made_up(Unit("roads", name, seed), level=i) for i, name in enumerate(tables.ABLATION) for seed in (0, 1)]
    dice, ece = tables.ablation_gain_table(Results(rows)).rows[0].cells
    assert (dice.value, ece.value) == (pytest.approx(-0.02), pytest.approx(0.02))
    assert ece.low <= ece.value <= ece.high


def test_losses_and_calibrations_are_counted_as_they_were_made_up(rows, made_up):
    results = Results(rows)
    # Of the losses, ce alone was made up to be better than ce_dice, on each of three tasks.
    assert counted(compared(results, "nll", "clean", "ts")) == (3, 0, 3 * OTHERS)
    assert counted(compared(results, "nll", "corrupted", "none")) == (2, 0, 2 * OTHERS)
    assert compared(results, "nll", "clean", "ts")["roads", "ce"] == -1
    assert calibrated(results, "nll", "clean", "ts") == (24, 0, 0)
    assert best_pair(results, "nll", "clean", "roads")[:2] == ("ce", "cms_ap")  # all calibrators were made up alike
    assert spread(results, "nll", "clean", "ts", "roads") == pytest.approx(0.02 * (len(MAIN) - 1))
    assert spread(results, "nll", "corrupted", "ts", "tumour") is None
    assert "| roads | 0.1400 | 0.1400 | 0.1400 | 0.1400 | CE, cms_ap |" in spread_table(results, "nll").to_markdown()
    alike = Results([made_up(Unit("roads", variant, 0), level=0) for variant in MAIN])
    assert counted(compared(alike, "nll", "clean", "none")) == (0, len(MAIN) - 1, 0)
    rows = [made_up(Unit("roads", variant, 0)) for variant in MAIN]
    rows[0]["values"]["clean"]["lts_ti"] = rows[0]["values"]["clean"]["none"]
    assert unchanged(Results(rows), "lts_ti") == (1, len(MAIN))
    assert unchanged(Results(rows), "ts") == (0, len(MAIN))


def test_counts_of_the_verdict_are_rows(rows):
    found = keyed(study_rows.rows(Results(rows)))

    def pairs(stage, pipeline, what):
        words = ("clearly lower", "clearly higher", "compared")
        titles = [f"{what}, pairs of loss and task {word}" for word in words]
        return [found[f"all tasks, {stage}", pipeline, title].value for title in titles]

    for pipeline in tables.PIPELINES:
        assert pairs("clean", pipeline, "NLL against CE + Dice") == [3, 18, 21]
    assert pairs("corrupted", "none", "NLL against CE + Dice") == [2, 12, 14]
    assert pairs("clean", "ts", "ECE (all) by calibration") == [24, 0, 24]
    assert ("all tasks, clean", "none", "NLL by calibration, pairs of loss and task compared") not in found


def shown_lines(axis):
    return {line.get_label(): line.get_ydata() for line in axis.lines}


def test_figures_show_the_numbers(rows, made_up):
    results = Results(rows)
    figure = figures.radar(results)
    assert [axis.get_title() for axis in figure.axes] == list(results.tasks)
    dice = shown_lines(figure.axes[0])["Dice"]
    assert len(dice) == len(MAIN) + 1
    assert dice[0] == dice[-1] == pytest.approx(results.mean(Key("roads", MAIN[0]), "dice"))
    curve = shown_lines(figures.shares(results).axes[0])["NACL"]
    keys = [Key("roads", "nacl", share=share) for share in (*SHARES, 100)]
    np.testing.assert_allclose(curve, [results.mean(key, "dice") for key in keys])
    points = figures.union(results).axes[0].collections
    wanted = [results.mean(Key("roads", MAIN[2]), metric) for metric in ("dice", "ece_union")]
    np.testing.assert_allclose(points[2].get_offsets()[0], wanted)
    axis = figures.post_hoc(results).axes[0]
    assert axis.get_legend_handles_labels()[1] == ["none", "ts", "cms_ap", "lts_ti"]
    cell = results.cell(Key("roads", MAIN[0]), "nll", "clean", "none")
    np.testing.assert_allclose(axis.collections[0].get_segments()[0][:, 1], [cell.low, cell.high])
    assert figures.shares(Results([made_up(Unit("streets", v, 0)) for v in MAIN])) is None
    rows = [made_up(Unit("roads", variant, 0)) for variant in MAIN]
    rows[3]["logit_profile"] = [[9.0, None], [1.0, 2.0]]
    images = [axis.images[0] for axis in figures.logit_profiles(Results(rows)).axes if axis.images]
    assert {image.get_clim() for image in images} == {(0, 9)}  # one scale for all
    long = made_up(Unit("roads", "ce", 1)) | {"logit_histograms": {"2": [2] * 60, "10": [1] * 60, "1": [3] * 60}}
    axis = figures.logit_growth(Results([made_up(Unit("roads", "ce", 0)), long])).axes[0]
    assert [line.get_label() for line in axis.lines] == ["epoch 1", "epoch 2", "epoch 10"]
    assert sum(axis.lines[0].get_ydata()) == pytest.approx(1)


@pytest.fixture
def lines(tmp_path, rows):
    """Lines of a made-up study with pictures of one case of roads, a quarter of them ignored."""
    folder = tmp_path / "rows"
    folder.mkdir()
    for row in rows:
        write_row(folder, Unit(**row["unit"]).name, row)
    labels = np.zeros((6, 8), np.int8)
    labels[:3, :4] = -1
    write_picture(folder, "roads-shown-image", np.zeros((6, 8, 3), np.uint8))
    write_picture(folder, "roads-shown-labels", labels)
    for variant in MAIN:
        write_picture(folder, f"{Unit('roads', variant, 0).name}-prediction", np.ones((6, 8), np.uint8))
        write_picture(folder, f"{Unit('roads', variant, 0).name}-confidence", np.full((6, 8), 200, np.uint8))
    collect(folder, tmp_path / "losses.jsonl", read_by_pages)
    return tmp_path / "losses.jsonl"


def test_what_is_ignored_is_not_shown(lines, made_up):
    results = Results([made_up(Unit("roads", "ce", 0))])
    figure = figures.case_figure(results, [lines], "roads")
    prediction, confidence = (figure.axes[place].images[0].get_array() for place in (1, len(MAIN) + 2))
    for shown in (prediction, confidence):
        mask = np.ma.getmaskarray(shown)
        assert mask[:3, :4].all()
        assert mask.sum() == 12
    assert confidence[5, 5] == pytest.approx(200 / 255)
    assert figures.case_figure(results, [lines], "tumour") is None


def test_rows_and_figures_are_written_together(tmp_path, lines, rows):
    written = study_rows.write_study([lines], tmp_path / "out")
    drawn = {path.name for path in written.parent.glob("images/*")}
    assert {"case_roads.png", "radar.png", "shares.png"} <= drawn
    assert "case_tumour.png" not in drawn  # no case of it was kept
    found = read_rows("losses", tmp_path / "out")
    assert found == list(study_rows.rows(Results(rows)))  # nothing that rows read was left out
    assert found[0].value == len(rows)


def keyed(rows):
    rows = list(rows)
    found = {(row.task, row.method, row.metric): row for row in rows}
    assert len(found) == len(rows)  # nothing is said twice
    return found


def test_rows_are_the_numbers_of_the_networks(rows):
    results = Results(rows)
    found = keyed(study_rows.rows(results))
    for metric, title in (("nll", "NLL"), ("ece_foreground", "ECE (foreground)")):
        own = found["streets", "CE + Dice", title]
        one = results.estimate(Key("streets", "ce_dice"), metric)
        assert [float(end) for end in (own.value, own.low, own.high)] == pytest.approx(
            [one.value, one.low, one.high], abs=5.1e-4
        )
    gap = results.difference(Key("roads", "ce_dice"), Key("roads", "nacl"), "nll", "corrupted", "ts")
    own = found["roads, corrupted", "NACL", "NLL minus that of CE + Dice, ts"]
    assert float(own.value) == pytest.approx(gap.value, abs=5.1e-5)
    assert found["all tasks", "CE", "sum-rank Dice"].value == 3


def test_parts_without_networks_are_left_out(made_up, rows, tmp_path):
    alone = Results([made_up(unit) for unit in plan_units(2, main_only=True)])
    few, every = ({row.metric for row in study_rows.rows(own)} for own in (alone, Results(rows)))
    for words in ("variants of NACL", "NACL is better than SVLS", "settings", "backbones", "of the training data"):
        assert not [metric for metric in few if words in metric]
        assert [metric for metric in every if words in metric]
    assert "sum-rank all" in few
    assert set(figures.FIGURES) - set(figures.write_figures(alone, [], tmp_path)) == {"sensitivity", "shares"}


@pytest.mark.parametrize("name", ["losses", "losses_real"])
def test_the_rows_of_the_board_are_what_was_measured(name, monkeypatch):
    monkeypatch.undo()  # all draws
    shared_draws.__globals__["_drawn"].cache_clear()
    if name == "losses":
        made = list(study_rows.rows(Results(read_lines([LINES])[0])))
    else:
        made = list(real_rows(*read_real([LINES.with_name("real_losses.jsonl")])))
    assert made == read_rows(name), "run: python -m paper.loss_study docs and real-rows, see its help"


FACTS = Facts("a device", "2", 540, 0, recorded=True)
GROUPS = (0, 0, 1, 1, 2, 2, 3, 3)


def row(loss, seed, shift, size="small"):
    """Return a network whose numbers before calibration are shifted, and after it are not."""
    noise = 0.1 * np.random.default_rng(seed).random(len(GROUPS))
    before = {metric: (0.2 + shift + noise).tolist() for metric in ("dice", "nll", "ece", "ba_ece")}
    after = {metric: (0.2 + shift / 10 + noise).tolist() for metric in before}
    return RealRow(RealUnit("camvid", loss, size, seed), 9, GROUPS, {"none": before, "ts": after, "conic": after}, {})


def networks(size="small", **changed):
    shifts = {"ce_dice": 0.0, "ce": 0.05, "nacl": 0.0, "nacl_dice": 0.02} | changed
    return [row(loss, seed, shift, size) for loss, shift in shifts.items() for seed in (0, 1)]


def test_means_and_differences_of_real_data_are_those_of_groups():
    (table,) = tables_of([*networks(), row("svls", 0, 0.1), row("ce", 2, 0.0)])
    assert table.seeds == [0, 1]  # a loss with fewer seeds costs the others none
    assert table.losses == ["ce", "ce_dice", "nacl", "nacl_dice"]
    values = [row("ce", seed, 0.05).values["none"]["nll"] for seed in (0, 1)]
    assert table.mean("ce", "none", "nll").value == pytest.approx(np.mean(values))
    gap = table.gap("ce", "ce_dice", "none", "nll")
    assert (gap.value, gap.low) == (pytest.approx(0.05), pytest.approx(0.05))  # pairing leaves no spread
    assert [len(column) for column in table.columns("ce", "none", "nll")] == [4, 4]
    assert table.columns("ce", "none", "nll")[0][0] == pytest.approx(np.array(values[0][:2]).mean())
    assert table.spread("none", "nll") == pytest.approx(np.std([0.0, 0.05, 0.0, 0.02]))
    assert table.spread("ts", "nll") == pytest.approx(np.std([0.0, 0.005, 0.0, 0.002]))
    assert is_clear(Interval(1.0, 0.5, 2.0))
    assert not is_clear(Interval(1.0, -0.5, 2.0))
    assert not is_clear(Interval(None, None, None))


def values(rows, *facts):
    found = keyed(real_rows(rows, facts or [FACTS]))
    return {key: row.value for key, row in found.items()}, {key: row.note for key, row in found.items()}


def test_rows_of_real_data_say_who_is_better_and_what_is_left_after_calibration():
    found, notes = values([*networks(), *networks("large")])
    table = "Street scenes, small networks"
    dice = {loss: notes[table, f"{loss} against ce_dice", "Dice"] for loss in ("ce", "nacl", "nacl_dice")}
    assert dice == {"ce": "better", "nacl": "no clear difference", "nacl_dice": "better"}
    assert notes[table, "ce against ce_dice", "NLL as trained"] == "worse"
    # Of the pairs, ce_dice is below ce in everything and nacl_dice above nacl, in both sizes.
    for title in ("Dice", "BA-ECE as trained"):
        counts = [
            found["all tables", "the Dice term", f"{title}, {words}"] for words in ("clearly better", "clearly worse")
        ]
        assert counts == [2, 2]
    assert found["all tables", "the loss", "losses compared"] == 6
    for when in ("as trained", "ts", "conic"):
        assert found["all tables", "the loss", f"NLL {when}, losses that differ clearly from ce_dice"] == 4
    best = table, "ce_dice with conic against the best as trained", "NLL"
    assert (str(found[best]), notes[best]) == ("0.0000", "ce_dice; no clear difference")
    spread = "NLL {}, standard deviation of the means"
    assert str(found[table, "all losses", spread.format("as trained")]) == "0.0205"
    assert str(found[table, "all losses", spread.format("ts")]) == "0.0020"
    assert found[table, "all losses", f"{spread.format('ts')}, share left, %"] == 10
    assert str(found[table, "nacl_dice against nacl", "Dice"]) == "0.0200"
    assert found["all tasks", "the study", "minutes"] == 9
    # nacl equals ce_dice; the two others are worse in what should be low.
    worse = {
        loss: found["all tables", loss, "columns clearly worse than ce_dice"] for loss in ("ce", "nacl", "nacl_dice")
    }
    assert {loss for loss, count in worse.items() if not count} == {"nacl"}
    assert found["all tables", "nacl", "columns"] == 20


def test_large_networks_stand_beside_small_ones():
    found, notes = values([*networks(), *networks("large", ce=0.15, nacl_dice=0.01)])
    words = [
        found["street scenes", "large networks", f"Dice, losses {w}"]
        for w in ("higher", "clearly higher", "lower", "clearly lower")
    ]
    assert words == [1, 1, 1, 1]
    key = "street scenes", "ce, large against small networks", "Dice"
    assert (str(found[key]), notes[key]) == ("0.1000", "better")
    assert str(found["street scenes", "ce_dice, large against small networks", "Dice"]) == "0.0000"
    other_seeds = [one for one in networks("large") if one.unit.seed]
    found, _ = values([*networks(), *other_seeds], msgspec.structs.replace(FACTS, missing=2))
    assert not [key for key in found if "large against small" in key[1]]
    assert found["all tasks", "the study", "networks missing"] == 2


def test_one_command_writes_the_rows_of_real_data(tmp_path):
    (tmp_path / "rows").mkdir()
    for one in networks():
        write_row(tmp_path / "rows", one.unit.name, msgspec.to_builtins(one))
    write_row(tmp_path / "rows", "facts", msgspec.to_builtins(FACTS))
    collect(tmp_path / "rows", tmp_path / "a.jsonl")
    (tmp_path / "board").mkdir()
    assert main(["real-rows", str(tmp_path / "a.jsonl"), "--docs", str(tmp_path)]) == 0
    assert read_rows("losses_real", tmp_path / "board") == list(real_rows(networks(), [FACTS]))
