"""Calibration-set size: the same test cases, changes against the protocol's own size."""

import pytest
from msgspec import structs

from segcal.benchmark.results import Results
from segcal.errors import InputError
from segcal.studies.calibration_size import (
    STUDY,
    CalibrationSizeData,
    SizedTask,
    SizePoint,
    run_calibration_size,
    size_outcome,
)
from segcal.studies.study import NothingToStudyError
from segcal.summary import Estimate, Interval


@pytest.fixture(scope="module")
def study(setting):
    return run_calibration_size(setting)


def test_sizes_stay_within_the_cases_that_are_not_for_the_test(study):
    assert list(study.data.tasks) == ["toy"]
    assert study.data.tasks["toy"].sizes == [1, 3, 4]
    assert study.data.tasks["toy"].reference == 3


def test_the_change_at_the_reference_is_zero_and_elsewhere_the_paired_difference(setting, study):
    curves = study.data.tasks["toy"].pipelines["ms(mean_logits)"]
    here = {point.n: point for point in curves["nll"]}
    assert (here[3].change.value, here[3].change.equal) == (0, 8)
    assert here[3].value.value == setting.summary.numbers("toy", "ms(mean_logits)")["nll"].value
    assert here[1].change.value == pytest.approx(here[1].value.value - here[3].value.value)
    assert here[1].change.value != 0
    ace = {point.n: point for point in curves["ace"]}
    assert ace[1].change.value == pytest.approx(ace[1].value.value - ace[3].value.value)


def test_the_table_has_a_column_a_size_and_a_group_a_metric(study):
    text = study.tables["figure5_size_toy"].to_markdown()
    assert "| Pipeline | n = 1 | n = 3 | n = 4 |" in text
    assert [group.title for group in study.tables["figure5_size_toy"].groups] == ["nll", "ece", "ba_ece", "ace"]
    assert "identity" not in text


def test_sizes_follow_the_shares_of_the_paper_if_none_are_named(with_options):
    found = run_calibration_size(with_options(size_tasks=("plain",)))
    assert found.data.tasks["plain"].sizes == [1, 2, 3, 4]


def test_other_test_cases_are_refused(setting):
    other = []
    for each in setting.results.units:
        header = structs.replace(each.header, test=each.header.test[1:])
        other.append(structs.replace(each, header=header))
    results = {3: setting.results, 2: Results(setting.results.folder, setting.results.protocol, tuple(other))}
    with pytest.raises(InputError, match="'toy' has other test cases with 2 calibration cases than with 3"):
        size_outcome({"toy": results}, {"toy": 3}, setting.summary.bootstrap)


def test_a_task_that_is_not_there_leaves_nothing_to_study(with_options):
    with pytest.raises(NothingToStudyError, match="two cases beside the test"):
        run_calibration_size(with_options(size_tasks=("absent",)))


def test_sizes_are_drawn_as_change_with_a_band_for_the_task_that_has_them(section, texts):
    def points(metric):
        changes = {n: (10 - n) / 100 for n in (2, 10)}
        return [SizePoint(n, Estimate(0.1, 0.0, 0.2), Interval(c, c - 0.01, c + 0.01)) for n, c in changes.items()]

    sized = SizedTask(10, [2, 10], {title: {"nll": points("nll")} for title in ("ts", "ms")})
    assert list(STUDY.figures(CalibrationSizeData({"liver": sized}), section)) == []
    (drawn,) = STUDY.figures(CalibrationSizeData({"heart": sized}), section)
    assert (drawn.name, drawn.task) == ("size_heart", "heart")
    figure = drawn.draw()
    axis = figure.axes[0]
    assert axis.lines[1].get_xydata().tolist() == [[2, 0.08], [10, 0]]
    assert len(axis.collections) == 2
    assert "change against n = 10" in texts(figure)
