"""Calibration-set size: the same test cases, changes against the protocol's own size."""

import pytest
from msgspec import structs

from segcal.errors import InputError
from segcal.studies.calibration_size import STUDY, compare_sizes


def test_the_change_at_the_reference_is_zero_and_elsewhere_the_paired_difference(setting, studied):
    found = studied["calibration_size"].tasks
    assert list(found) == ["toy"]
    assert (found["toy"].sizes, found["toy"].reference) == ([1, 3, 4], 3)  # within the cases that are not for the test
    curves = found["toy"].pipelines["ms(mean_logits)"]
    here = {point.n: point for point in curves["nll"]}
    assert (here[3].change.value, here[3].change.equal) == (0, 8)
    assert here[3].value.value == setting.summary.numbers("toy", "ms(mean_logits)")["nll"].value
    assert here[1].change.value == pytest.approx(here[1].value.value - here[3].value.value)
    assert here[1].change.value != 0
    ace = {point.n: point for point in curves["ace"]}
    assert ace[1].change.value == pytest.approx(ace[1].value.value - ace[3].value.value)


def test_the_table_has_a_column_a_size_and_a_group_a_metric(studied, tables):
    text = tables("calibration_size", studied["calibration_size"])
    assert "| Pipeline | n = 1 | n = 3 | n = 4 |" in text
    assert [line.split("*")[1] for line in text.splitlines() if line.startswith("| *")] == [
        "nll", "ece", "ba_ece", "ace",
    ]  # fmt: skip
    assert "identity" not in text


def test_sizes_follow_the_shares_of_the_paper_if_none_are_named(changed):
    assert STUDY.run(changed({"size_tasks": ("plain",)})).tasks["plain"].sizes == [1, 2, 3, 4]


def test_other_test_cases_are_refused(setting):
    units = tuple(
        structs.replace(each, header=structs.replace(each.header, test=each.header.test[1:]))
        for each in setting.results.units
    )
    results = {3: setting.results, 2: structs.replace(setting.results, units=units)}
    with pytest.raises(InputError, match="'toy' has other test cases with 2 calibration cases than with 3"):
        compare_sizes("toy", results, 3, setting.summary.bootstrap)


def test_sizes_are_drawn_as_change_with_a_band_for_the_task_that_has_them(figures, texts):
    estimate = {"value": 0.1, "low": 0.0, "high": 0.2}
    changes = {2: 0.08, 10: 0.0}
    points = [
        {"n": n, "value": estimate, "change": {"value": c, "low": c - 0.01, "high": c + 0.01}}
        for n, c in changes.items()
    ]
    sized = {"reference": 10, "sizes": [2, 10], "pipelines": {title: {"nll": points} for title in ("ts", "ms")}}
    assert figures("calibration_size", {"tasks": {"liver": sized}}) == {}
    drawn = figures("calibration_size", {"tasks": {"heart": sized}})["size_heart"]
    assert drawn.task == "heart"
    axis = (figure := drawn.draw()).axes[0]
    assert axis.lines[1].get_xydata().tolist() == [[2, 0.08], [10, 0]]
    assert len(axis.collections) == 2
    assert "change against n = 10" in texts(figure)
