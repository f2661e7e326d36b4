"""Which figures a set of studies has."""

from segcal.report.figures.collect import Drawn, study_figures

PLACE = {
    "classes": ["a", "b", "c"],
    "background": True,
    "baseline": "identity(mean_logits)",
    "chosen": "ts(mean_logits)",
}


def test_studies_that_are_not_there_have_no_figures():
    assert study_figures({}, {"heart": PLACE}) == []


def test_temperature_is_drawn_where_the_cases_have_it(classes, picture, values):
    slices = [{"index": 0, "truth": classes, "image": picture}, {"index": 1, "truth": classes, "temperature": values}]
    studies = {"worst_cases": {"tasks": {"heart": {"cases": [{"case": "x", "slices": slices}]}}}}
    found = {each.name: each for each in study_figures(studies, {"heart": PLACE})}
    assert set(found) == {"inputs_heart", "temperature_heart"}
    assert not found["inputs_heart"].on_page
    plain = found["temperature_heart"].to_plain()
    assert set(plain) == {"name", "task", "title", "text", "svg"}
    assert plain["svg"].startswith("<?xml")


def test_a_corrupted_picture_is_drawn_where_there_is_one(picture):
    def studies(example):
        return {"covariate_shift": {"tasks": {"heart": {"example": example}}}}

    example = {"case": "x", "images": {"clean": picture, "fog": picture}}
    (drawn,) = study_figures(studies(example), {"heart": PLACE})
    assert isinstance(drawn, Drawn)
    assert drawn.name == "corruptions_heart"
    assert study_figures(studies(None), {"heart": PLACE}) == []


def test_sizes_are_drawn_for_the_task_that_has_them():
    one = {"value": 0.1, "low": 0.0, "high": 0.2}
    points = [{"n": n, "value": one, "change": one} for n in (2, 10)]
    sizes = {"reference": 10, "sizes": [2, 10], "pipelines": {"ts": {"nll": points}}}
    found = study_figures({"calibration_size": {"tasks": {"heart": sizes}}}, {"heart": PLACE, "liver": PLACE})
    assert [each.task for each in found] == ["heart"]
