"""The cases that a critical reader would ask for."""

from msgspec import to_builtins

from segcal.report.figures import to_svg
from segcal.report.images import SeenCase, SliceMaps
from segcal.studies import worst_cases
from segcal.studies.worst_cases import choose_pipeline, look_at, overlay_figure, temperature_figure


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


def test_without_validation_cases_a_safe_calibrator_is_taken(setting, monkeypatch):
    split = setting.split(setting.tasks[0], "mean_logits")
    monkeypatch.setattr(type(setting), "split", lambda *_: split._replace(val=split.val.subset([])))
    pipeline, validation = choose_pipeline(setting, setting.tasks[0])
    assert (pipeline.title, validation) == ("ts(mean_logits)", {})


def test_a_local_temperature_is_shown_where_one_was_fitted(setting, monkeypatch, texts):
    assert look_at(setting, setting.tasks[0]).temperature is None
    monkeypatch.setattr(worst_cases, "LOCAL", ("none", "ts"))
    found = look_at(setting, setting.tasks[0])
    assert found.temperature == "ts(mean_logits)"
    figure = temperature_figure([(case.case, case.slices[0]) for case in found.cases[:2]])
    assert len({(axis.images[0].norm.vmin, axis.images[0].norm.vmax) for axis in figure.axes[2:4]}) == 1  # one scale
    assert "temperature: above 1 is softened" in texts(figure)


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
