"""Figures are drawn from made-up rows, and what they show is read back from them."""

import numpy as np
import pytest

from paper.loss_study.plan import MAIN, SHARES, Unit
from paper.loss_study.results import Key, Results
from paper.loss_study.rows import pack, write_arrays

pytest.importorskip("matplotlib", reason="matplotlib is not installed")
from paper.loss_study import figures


def shown_lines(axis):
    return {line.get_label(): line.get_ydata() for line in axis.lines}


def test_a_radar_goes_once_around_all_losses(rows):
    results = Results(rows)
    figure = figures.radar(results)
    assert [axis.get_title() for axis in figure.axes] == list(results.tasks)
    dice = shown_lines(figure.axes[0])["Dice"]
    assert len(dice) == len(MAIN) + 1
    assert dice[0] == dice[-1] == pytest.approx(results.mean(Key("roads", MAIN[0]), "dice"))


def test_curves_show_means_in_the_order_of_the_settings(rows):
    results = Results(rows)
    figure = figures.shares(results)
    curve = shown_lines(figure.axes[0])["NACL"]
    keys = [Key("roads", "nacl", share=share) for share in (*SHARES, 100)]
    np.testing.assert_allclose(curve, [results.mean(key, "dice") for key in keys])
    assert len(figures.sensitivity(results).axes) == 2 * len(results.tasks)


def test_without_the_tasks_of_a_figure_there_is_none(made_up):
    assert figures.shares(Results([made_up(Unit("streets", v, 0)) for v in MAIN])) is None


def test_points_of_the_union_are_dice_and_error(rows):
    results = Results(rows)
    points = figures.union(results).axes[0].collections
    assert len(points) == len(MAIN)
    wanted = [results.mean(Key("roads", MAIN[2]), metric) for metric in ("dice", "ece_union")]
    np.testing.assert_allclose(points[2].get_offsets()[0], wanted)


def test_every_calibration_has_its_intervals(rows):
    results = Results(rows)
    axis = figures.post_hoc(results).axes[0]
    assert axis.get_legend_handles_labels()[1] == ["none", "ts", "cms_ap", "lts_ti"]
    cell = results.cell(Key("roads", MAIN[0]), "nll", "clean", "none")
    segment = axis.collections[0].get_segments()[0]
    np.testing.assert_allclose(segment[:, 1], [cell.low, cell.high])


def test_growth_is_that_of_the_network_that_was_watched_longest(made_up):
    short, long = made_up(Unit("roads", "ce", 0)), made_up(Unit("roads", "ce", 1))
    long["logit_histograms"] = {"2": [2] * 60, "10": [1] * 60, "1": [3] * 60}
    axis = figures.logit_growth(Results([short, long])).axes[0]
    assert [line.get_label() for line in axis.lines] == ["epoch 1", "epoch 2", "epoch 10"]
    assert sum(axis.lines[0].get_ydata()) == pytest.approx(1)


def test_profiles_share_one_scale(made_up):
    rows = [made_up(Unit("roads", variant, 0)) for variant in MAIN]
    rows[3]["logit_profile"] = [[9.0, None], [1.0, 2.0]]
    images = [axis.images[0] for axis in figures.logit_profiles(Results(rows)).axes if axis.images]
    assert {image.get_clim() for image in images} == {(0, 9)}


def test_what_is_ignored_is_not_shown(tmp_path, made_up):
    folder = tmp_path / "rows"
    folder.mkdir()
    labels = np.zeros((6, 8), np.int8)
    labels[:3, :4] = -1
    write_arrays(folder, "roads-shown", {"image": np.zeros((3, 6, 8), np.uint8), "labels": labels})
    arrays = {"prediction": np.ones((6, 8), np.uint8), "confidence": np.full((6, 8), 200, np.uint8)}
    write_arrays(folder, Unit("roads", "ce", 0).name, arrays)
    pack(folder, tmp_path / "a.zip")
    results = Results([made_up(Unit("roads", "ce", 0))])
    figure = figures.case_figure(results, [tmp_path / "a.zip"], "roads")
    prediction, confidence = (figure.axes[place].images[0].get_array() for place in (1, len(MAIN) + 2))
    for shown in (prediction, confidence):
        assert (np.ma.getmaskarray(shown) == (labels < 0)).all()
    assert confidence[5, 5] == pytest.approx(200 / 255)
    assert figures.case_figure(results, [tmp_path / "a.zip"], "tumour") is None


def test_figures_without_networks_are_not_drawn(tmp_path, made_up):
    names = figures.write_figures(Results([made_up(Unit("roads", v, 0)) for v in MAIN]), [], tmp_path)
    assert set(figures.FIGURES) - set(names) == {"sensitivity", "shares"}


def test_figures_are_written_whole(tmp_path, rows):
    names = figures.write_figures(Results(rows), [], tmp_path)
    assert sorted(path.stem for path in tmp_path.iterdir()) == sorted(names) == sorted(figures.FIGURES)
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in tmp_path.iterdir())
