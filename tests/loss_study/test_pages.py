"""Pages: numbers, tables, figures, sentences and whole pages are those of made-up rows."""

import re
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from paper.loss_study import page, tables
from paper.loss_study.__main__ import main
from paper.loss_study.draws import shared_draws
from paper.loss_study.plan import MAIN, SHARES, Unit, plan_units
from paper.loss_study.real import RealRow, RealUnit
from paper.loss_study.real_page import Facts, is_clear, real_page, tables_of
from paper.loss_study.results import Key, Results, read_by_pages
from paper.loss_study.rows import collect, read_lines, write_picture, write_row
from paper.loss_study.verdict import best_pair, calibrated, compared, counted, spread, spread_table, unchanged, verdict
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
    assert "Ranks" not in page.sections(results, [], "x")  # which need every loss
    results = Results([made_up(Unit("roads", "ce", seed)) for seed in (0, 1)] + [made_up(Unit("roads", "nacl", 1))])
    assert results.seeds(first, second) == [1]
    assert results.difference(first, second, "nll").cases == 5
    assert page.facts_text(results).startswith("3 networks were trained, 1 to 2 of each kind")


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


def test_the_verdict_says_whether_losses_stay_apart(rows, made_up):
    first, second = verdict(Results(rows)).splitlines()
    assert first.startswith(
        "- **On cases like those of training.** As trained, 21 of 21 pairs of loss and task differ clearly from "
        "CE + Dice in NLL (3 lower, 18 higher); calibrated alike, 21 with ts (3, 18), 21 with cms_ap (3, 18) and 21 "
        "with lts_ti (3, 18). So the choice of a loss still matters after calibration; better with every calibrator: "
        "CE on roads, CE on streets and CE on tumour."
    )
    assert "ts in 24 of 24 (raises it in 0)" in first
    assert second.startswith("- **Under corruption.** As trained, 14 of 14 pairs")
    rows = [made_up(Unit("tumour", variant, seed)) for variant in MAIN for seed in (0, 1)]
    assert "Under corruption" not in verdict(Results(rows))  # which was not measured
    rows = [made_up(Unit("roads", variant, seed), level=0) for variant in MAIN for seed in (0, 1)]
    assert "So there is nothing that a calibrator could take over" in verdict(Results(rows))
    rows = [made_up(Unit("roads", variant, 0)) for variant in MAIN]
    assert verdict(Results(rows)) == "One network of each kind is no basis for a conclusion: train more seeds."


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (
            ("ts", "cms_ap", "lts_ti"),
            "So a calibrator fitted after training does most of what a loss does, and no",
        ),
        (("ts",), "So ts does most of what a loss does, the others less"),
        (("ts", "lts_ti"), "So ts and lts_ti do most of what"),
    ],
)
def test_where_calibrators_make_losses_alike_they_are_named(made_up, names, said):
    rows = [made_up(Unit("roads", variant, seed)) for variant in MAIN for seed in (0, 1)]
    for row in rows:
        clean = row["values"]["clean"]
        alike = {name: {metric: [0.1] * len(column) for metric, column in clean["none"].items()} for name in names}
        row["values"] = {"clean": clean | alike}
    assert said in verdict(Results(rows))


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


def test_a_page_links_every_figure_that_is_there_and_says_what_it_lacks(tmp_path, lines, rows):
    written = page.write_page([lines], tmp_path / "out", small=True, missing=5)
    text = written.read_text(encoding="utf-8")
    linked = set(re.findall(r"\((images/\w+\.png)\)", text))
    assert linked == {path.relative_to(written.parent).as_posix() for path in written.parent.glob("images/*")}
    assert {"images/case_roads.png", "images/radar.png", "images/shares.png"} <= linked
    assert "images/case_tumour.png" not in linked  # no case of it was kept
    assert "its numbers mean nothing" in text
    assert "5 more are to come" in text
    assert f"{len(rows)} networks were trained, 2 of each kind" in text
    whole = page.sections(Results(rows), [path.stem for path in written.parent.glob("images/*")], page.IMAGES)
    assert text.endswith(whole)  # nothing that a page reads was left out


def test_parts_without_networks_are_left_out(made_up, rows, tmp_path, monkeypatch):
    alone = Results([made_up(unit) for unit in plan_units(2, main_only=True)])
    few, all_of_them = (re.findall(r"^### (.*)$", page.sections(own, [], "x"), re.M) for own in (alone, Results(rows)))
    assert [title.split(" (")[0] for title in all_of_them if title not in few] == [
        "Prior, penalty, logits or softmax",
        "NACL against SVLS with the same Gaussian",
        "Hyper-parameters",
        "Backbones",
        "Less training data",
    ]
    assert "Ranks (Fig. 2)" in few
    drawn = SimpleNamespace(savefig=lambda path, dpi: Path(path).touch())
    monkeypatch.setattr(figures, "FIGURES", dict.fromkeys(figures.FIGURES, lambda results: drawn))
    assert set(figures.FIGURES) - set(figures.write_figures(alone, [], tmp_path)) == {"sensitivity", "shares"}


def measured(text):
    """Return the rows of the tables without their intervals, which are drawn, and without what is bold by them."""
    return [re.sub(r"\*\*| \[[^\]]*\]", "", line) for line in text.splitlines() if line.startswith("|")]


@pytest.mark.skipif(not LINES.exists(), reason="the results of the study are not part of this copy")
def test_the_generated_part_of_the_docs_says_what_was_measured():
    rows, _ = read_lines([LINES])
    tested = {(row["unit"]["task"], len(row["values"]["clean"]["none"]["dice"])) for row in rows}
    assert tested == {("roads", 24), ("streets", 24), ("tumour", 24)}
    document = (ROOT / "docs" / page.PAGE).read_text(encoding="utf-8")
    drawn = [path.stem for path in (ROOT / "docs" / page.DOCS_IMAGES).iterdir()]
    found = measured(page.sections(Results(rows), drawn, page.DOCS_IMAGES))
    command = "python -m paper.loss_study docs paper/results/losses.jsonl --docs docs"
    assert found == measured(document.split(page.BEGIN)[1].split(page.END)[0]), f"run: {command}"


def test_only_what_stands_between_marks_is_replaced():
    document = f"a\n{page.BEGIN}\nold\n{page.END}\nb"
    assert page.replaced(document, "new\n") == f"a\n{page.BEGIN}\n\nnew\n\n{page.END}\nb"


FACTS = Facts("a device", "2", 540, 0, recorded=True)
GROUPS = (0, 0, 1, 1, 2, 2, 3, 3)


def row(loss, seed, shift, size="small"):
    """Return a network whose numbers before calibration are shifted, and after it are not."""
    noise = 0.1 * np.random.default_rng(seed).random(len(GROUPS))
    before = {metric: (0.2 + shift + noise).tolist() for metric in ("dice", "nll", "ece", "ba_ece")}
    after = {metric: (0.2 + shift / 10 + noise).tolist() for metric in before}
    return RealRow(RealUnit("camvid", loss, size, seed), 9, GROUPS, {"none": before, "ts": after, "conic": after}, {})


def real_rows(size="small", **changed):
    shifts = {"ce_dice": 0.0, "ce": 0.05, "nacl": 0.0, "nacl_dice": 0.02} | changed
    return [row(loss, seed, shift, size) for loss, shift in shifts.items() for seed in (0, 1)]


def test_means_and_differences_of_real_data_are_those_of_groups():
    (table,) = tables_of([*real_rows(), row("svls", 0, 0.1), row("ce", 2, 0.0)])
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


def test_the_page_of_real_data_says_who_is_better_and_what_is_left_after_calibration():
    text = real_page([*real_rows(), *real_rows("large")], [FACTS])
    assert "| Street scenes, small networks | Dice | `ce`, `nacl_dice` | none |" in text
    assert "| Street scenes, small networks | NLL as trained | none | `ce`, `nacl_dice` |" in text
    # Of the pairs, ce_dice is below ce in everything and nacl_dice above nacl, in both sizes.
    assert "Dice: clearly better in 2, clearly worse in 2. BA-ECE as trained: clearly better in 2, clearly wor" in text
    assert "Of 6 losses beside `ce_dice`" in text
    assert "NLL 4 (as trained), 4 (ts), 4 (conic)" in text
    assert "Street scenes, small networks: NLL +0.0000 [+0.0000, +0.0000] (`ce_dice`)" in text
    assert "0.0205 | 0.0020 (10%) | 0.0020 (10%)" in text
    assert "| Street scenes, small networks | nacl | **+0.0200 [+0.0200, +0.0200]** |" in text
    assert "9 minutes on a device" in text
    # nacl equals ce_dice; the two others are worse in what should be low.
    assert "clearly worse than `ce_dice`: `nacl` (clearly better in 0 of 20)." in text
    assert "No network of the study is missing." in text


def test_large_networks_stand_beside_small_ones_with_clear_differences_bold():
    text = real_page([*real_rows(), *real_rows("large", ce=0.15, nacl_dice=0.01)], [FACTS])
    assert "4 losses, with large networks: Dice higher in 1 (1 clearly) and lower in 1 (1 clearly);" in text
    before, after = (
        np.mean([row("ce", seed, shift).values["none"]["dice"] for seed in (0, 1)]) for shift in (0.05, 0.15)
    )
    assert f"| street scenes | ce | **{before:.4f} → {after:.4f}** |" in text
    same = np.mean([row("ce_dice", seed, 0.0).values["none"]["dice"] for seed in (0, 1)])
    assert f"| street scenes | ce_dice | {same:.4f} → {same:.4f} |" in text
    other_seeds = [one for one in real_rows("large") if one.unit.seed]
    text = real_page([*real_rows(), *other_seeds], [msgspec.structs.replace(FACTS, missing=2)])
    assert "## Large networks" not in text
    assert "Of 14 networks 2 were not finished in the time; a loss that" in text


def test_one_command_writes_the_page_of_real_data(tmp_path):
    (tmp_path / "rows").mkdir()
    for one in real_rows():
        write_row(tmp_path / "rows", one.unit.name, msgspec.to_builtins(one))
    write_row(tmp_path / "rows", "facts", msgspec.to_builtins(FACTS))
    collect(tmp_path / "rows", tmp_path / "a.jsonl")
    (tmp_path / "a.md").write_text("In words.\n")
    assert main(["real-page", str(tmp_path / "a.jsonl"), "--docs", str(tmp_path)]) == 0
    text = (tmp_path / "losses_real.md").read_text("utf-8")
    assert text.startswith("# Losses on real data\n\nIn words.\n\n## What was done\n")
    assert "## Street scenes, small networks" in text
