"""A place of the page has the numbers of the summary and of its cases."""

import pytest

from segcal.benchmark.page import place as module
from segcal.benchmark.page.place import case_numbers, make_place
from segcal.benchmark.pipelines import Pipeline

TS = Pipeline("mean_logits", "ts")


def made(setting, test_on="", chosen=TS):
    return make_place(setting.results, setting.summary, "heart", test_on, chosen, "by hand")


def test_rows_are_those_of_the_summary(page_setting):
    place = made(page_setting)
    assert [row["pipeline"] for row in place["rows"]][1] == "identity(mean_logits)"
    row = next(row for row in place["rows"] if row["pipeline"] == "ts(mean_logits)")
    expected = page_setting.numbers("heart", "ts(mean_logits)")
    assert row["metrics"]["ece"]["value"] == pytest.approx(expected["ece"]["value"], rel=1e-5)
    assert row["metrics"]["ace"]["low"] == pytest.approx(expected["ace"]["low"], rel=1e-5)
    assert (row["preserves"], row["translation_invariant"], row["converged"]) == ("order", True, True)


def test_the_verdict_is_about_the_chosen_pipeline_and_its_shifts(page_setting):
    place = made(page_setting)
    assert (place["baseline"], place["chosen"]) == ("identity(mean_logits)", "ts(mean_logits)")
    assert any("heart_strong" in text for text in place["verdict"]["limits"])
    assert "by hand" in place["verdict"]["done"]


def test_a_place_elsewhere_is_named_so(page_setting):
    place = made(page_setting, "heart_strong")
    assert place["id"] == "heart→heart_strong"
    assert place["verdict"]["headline"]


def test_without_an_uncalibrated_row_there_is_no_verdict(page_setting):
    place = made(page_setting, chosen=Pipeline("mean_probs", "ts"))
    assert place["verdict"] is place["baseline"] is place["chosen"] is None


def test_every_test_case_of_the_first_repeat_has_its_numbers(page_setting, monkeypatch):
    units = {"ts(mean_logits)": page_setting.results.repeats("heart", "ts(mean_logits)")}
    found = case_numbers(units)
    rows = units["ts(mean_logits)"][0].rows
    assert found["names"] == [row["case"] for row in rows]
    assert found["nll"]["ts(mean_logits)"] == pytest.approx([row["metrics"]["nll"] for row in rows], abs=1e-6)
    monkeypatch.setattr(module, "MOST_CASES", 2)
    assert (len(case_numbers(units)["names"]), case_numbers(units)["of"]) == (2, len(rows))
