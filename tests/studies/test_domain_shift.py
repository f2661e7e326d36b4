"""Domain shift: the layout of one row a dataset and model, one column a calibrator."""

from dataclasses import replace

import pytest
from msgspec import structs

from segcal.studies.domain_shift import arrange, run_domain_shift
from segcal.studies.study import NothingToStudyError
from segcal.summary import Estimate, ResultRow


def result(task, target, pipeline, ece, miou):
    metrics = {"ece": Estimate(ece, None, None), "miou": Estimate(miou, None, None)}
    return ResultRow(task, target, pipeline, metrics, converged=True)


def with_rows(setting, rows):
    return replace(setting, summary=structs.replace(setting.summary, results=tuple(rows)))


def test_rows_and_columns_are_those_of_hand_made_results(setting):
    rows = [
        result("toy", "", "identity(mean_logits)", 0.2, 0.5),
        result("toy", "", "ts(mean_logits)", 0.1, 0.5),
        result("toy", "elsewhere", "identity(single)", 0.5, 0.25),
        result("toy", "elsewhere", "identity(mean_logits)", 0.4, 0.3),
        result("toy", "elsewhere", "ts(mean_logits)", 0.3, 0.3),
    ]
    study = run_domain_shift(with_rows(setting, rows))
    inside, outside = (table.to_markdown() for table in study.tables.values())
    assert "| Model | mIoU | Uncal | ts |" in inside
    assert "| *toy* | | | |\n| mean_logits | 50.00 | 0.200 | 0.100 |" in inside
    assert (
        "| *toy to elsewhere* | | | |\n| single | 25.00 | 0.500 | — |\n| mean_logits | 30.00 | 0.400 | 0.300 |"
        in outside
    )


def test_every_pair_of_a_benchmark_has_its_rows(setting):
    rows = arrange(setting, [row for row in setting.summary.results if row.test_on])
    places = [(row.InD, row.SD, row.model) for row in rows]
    assert sorted(places) == sorted(
        ("toy", target, pooling) for target in ("toy_strong", "elsewhere") for pooling in ("single", "mean_logits")
    )
    assert set(rows[-1].ece) == {"identity", "ts", "ms", "cms_ap"}


def test_without_another_place_there_is_nothing_to_study(setting):
    rows = [row for row in setting.summary.results if not row.test_on]
    with pytest.raises(NothingToStudyError, match="no task names another one in test_on"):
        run_domain_shift(with_rows(setting, rows))
