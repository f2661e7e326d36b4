"""The cases that a critical reader would ask for."""

import numpy as np
from msgspec import to_builtins

from segcal.report.figures import to_svg
from segcal.report.pictures import SeenCase, SliceMaps, encode_values
from segcal.studies import worst_cases
from segcal.studies.worst_cases import case_numbers, choose_pipeline, look_at, overlay_figure, temperature_figure


def test_every_task_has_its_pipeline_and_its_cases_worst_first(setting, studied, tables):
    data = studied["worst_cases"]
    assert set(data.tasks) == {"toy", "plain"}
    found = data.tasks["toy"]
    assert found.chosen.title in {"identity(mean_logits)", "ts(mean_logits)", "cms_ap(mean_logits)"}
    losses = [each.nll[1] for each in found.cases]
    assert losses == sorted(losses, reverse=True)
    every = setting.results.repeats("toy", found.chosen.title)[0].numbers("nll")
    assert losses[0] == max(every)
    assert found.of == len(every) == 4
    first = found.cases[0]
    before = {row.case: row for row in setting.results.repeats("toy", "identity(mean_logits)")[0].rows}
    assert first.ece[0] == before[first.case].metrics["ece"]
    assert first.shape == [12, 17]
    assert first.slices[0].image
    assert first.slices[0].energy
    assert f"*toy: {found.chosen.title}*" in tables("worst_cases", data)


def test_pictures_of_a_task_are_bounded(setting):
    assert len(look_at(setting, setting.tasks[0], budget=1).cases) == 1


def test_without_validation_cases_a_safe_calibrator_is_taken(setting, monkeypatch):
    split = setting.split(setting.tasks[0], "mean_logits")
    monkeypatch.setattr(type(setting), "split", lambda *_: split._replace(val=split.val.subset([])))
    pipeline, validation = choose_pipeline(setting, setting.tasks[0])
    assert (pipeline.title, validation) == ("ts(mean_logits)", {})


def test_the_rows_hold_both_stages(setting):
    pipeline, _ = choose_pipeline(setting, setting.tasks[1])
    found = case_numbers(setting, "plain", pipeline)
    units = [setting.results.repeats("plain", title)[0] for title in ("identity(mean_logits)", pipeline.title)]
    before, after = (unit.numbers("ece") for unit in units)
    assert [one.ece for one in found.values()] == [list(pair) for pair in zip(before, after, strict=True)]


def test_a_local_temperature_is_shown_where_one_was_fitted(setting, monkeypatch):
    assert look_at(setting, setting.tasks[0]).temperature is None
    monkeypatch.setattr(worst_cases, "LOCAL", ("none", "ts"))
    found = look_at(setting, setting.tasks[0])
    assert found.temperature == "ts(mean_logits)"
    assert all(each.temperature for case in found.cases for each in case.slices)


def maps(classes, **more):
    return SliceMaps(0, classes, classes, classes, classes, **more)


def test_inputs_stand_above_the_same_with_the_truth_over_them(texts, classes, picture, nasty):
    figure = overlay_figure(
        [(nasty, maps(classes, image=picture)), ("b", maps(classes))], ("background", nasty, "road")
    )
    assert [len(axis.images) for axis in figure.axes] == [1, 1, 2, 2]
    found = texts(figure)
    assert "road" in found
    assert "background" not in found
    assert "sky" in texts(overlay_figure([("a", maps(classes))], ("sky", "road"), background=False))


def test_all_temperatures_share_one_scale(texts, classes, picture):
    own = [encode_values(np.full((12, 20), 0.5) + np.eye(12, 20)), encode_values(np.full((12, 20), 4.0))]
    figure = temperature_figure(
        [(str(k), maps(classes, image=picture, temperature=each)) for k, each in enumerate(own)]
    )
    norms = {(axis.images[0].norm.vmin, axis.images[0].norm.vmax) for axis in figure.axes[2:4]}
    assert norms == {(0.5, 4.0)}
    assert "temperature: above 1 is softened" in texts(figure)


def test_temperature_is_drawn_where_the_cases_have_it(figures, classes, picture, values):
    slices = [maps(classes, image=picture), maps(classes, temperature=values)]
    case = SeenCase("x", ["worst"], [1.0, 1.0], [0.1, 0.1], [0.5, 0.5], 240, None, [12, 20, 2], 2, 1, slices)
    chosen = {"title": "ts(mean_logits)", "pooling": "mean_logits", "calibrator": "ts"}

    def drawn(*cases):
        task = {"chosen": chosen, "validation_nll": {}, "cases": to_builtins(cases), "of": 1}
        return figures("worst_cases", {"rule": "", "tasks": {"heart": task}})

    found = drawn(case)
    assert set(found) == {"inputs_heart", "temperature_heart"}
    assert not found["inputs_heart"].on_page
    assert to_svg(found["temperature_heart"].draw()).startswith("<?xml")
    assert drawn() == {}
