"""Failures found without labels: ways against each other, places, and what is too little."""

from dataclasses import replace

import numpy as np
import pytest
from msgspec import structs

from segcal import make_calibrator
from segcal.studies.failure_detection import (
    OURS,
    FailurePlace,
    failure_outcome,
    judge_ways,
    rank,
    run_failure_detection,
)
from segcal.studies.setting import NothingToStudyError
from segcal.summary import Bootstrap


def test_a_better_ranking_has_a_smaller_area_and_the_difference_is_paired():
    rng = np.random.default_rng(0)
    risk = rng.random(30)
    ways = {"best": -risk, OURS: -risk + 0.2 * rng.normal(size=30), "chance": rng.random(30)}
    found = judge_ways(ways, risk, Bootstrap(replicates=200))
    assert list(found) == ["best", OURS, "chance"]
    assert found["best"].excess == pytest.approx(0)
    assert found[OURS].against.value == found[OURS].against.low == found[OURS].against.high == 0
    assert found["chance"].against.low > 0
    assert found["best"].auroc == 1


def test_a_benchmark_has_its_tasks_and_the_places_they_were_tested_on(with_options):
    study = run_failure_detection(with_options(cases=None))
    assert list(study.data.places) == ["toy", "toy to toy_strong", "toy to elsewhere", "plain"]
    place = study.data.places["toy"]
    assert place.cases == 4
    assert OURS in place.ways
    assert "agreement of members, before" not in place.ways
    table = study.tables["failure_detection"].to_markdown()
    assert "toy (4 cases, " in table


def test_too_few_cases_are_nothing_to_rank(setting, masked_cases):
    cases, _ = masked_cases(1)
    assert rank(cases, make_calibrator("ts", 5), True, Bootstrap(replicates=10)) is None
    units = tuple(each for each in setting.results.units if each.unit.pipeline.pooling == "single")
    with pytest.raises(NothingToStudyError, match="no task has mean logits and 2 labelled test cases"):
        run_failure_detection(replace(setting, results=structs.replace(setting.results, units=units)))


def test_what_is_not_defined_is_a_dash():
    found = judge_ways({OURS: np.arange(3.0)}, np.zeros(3), Bootstrap(replicates=10))
    table = failure_outcome({"a": FailurePlace(3, 0, found)}).tables["failure_detection"]
    assert "—" in table.to_markdown()
