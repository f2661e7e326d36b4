"""Failures found without labels: ways against each other, places, and what is too little."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from segcal import ArrayCases, make_calibrator
from segcal.resample import Draws
from segcal.studies.failure_detection import (
    OURS,
    STUDY,
    FailureData,
    FailurePlace,
    auroc,
    generalised_area,
    judge_ways,
    rank,
    rankings,
    risk_area,
    risk_of,
)
from segcal.summary import Bootstrap
from segcal.trust.estimates import SumTable
from segcal.trust.learn import Summer


def test_a_better_ranking_has_a_smaller_area_and_the_difference_is_paired(tables):
    rng = np.random.default_rng(0)
    risk = rng.random(30)
    ways = {"best": -risk, OURS: -risk + 0.2 * rng.normal(size=30), "chance": rng.random(30)}
    found = judge_ways(ways, risk, Draws([30], 200), 0.95)
    assert list(found) == ["best", OURS, "chance"]
    assert found["best"].excess == pytest.approx(0)
    assert found[OURS].against.value == found[OURS].against.low == found[OURS].against.high == 0
    assert found["chance"].against.low > 0
    assert found["best"].auroc == 1
    none = judge_ways({OURS: np.arange(3.0)}, np.zeros(3), Draws([3], 10), 0.95)
    assert "—" in tables("failure_detection", FailureData(0.7, {"a": FailurePlace(3, 0, none)}))


def test_a_benchmark_has_its_tasks_and_the_places_they_were_tested_on(changed, tables):
    data = STUDY.run(changed({"cases": None}))
    assert list(data.places) == ["toy", "toy to toy_strong", "toy to elsewhere", "plain"]
    place = data.places["toy"]
    assert place.cases == 4
    assert OURS in place.ways
    assert "agreement of members, before" not in place.ways
    assert "toy (4 cases, " in tables("failure_detection", data)


def test_too_few_cases_are_nothing_to_rank(masked_cases):
    cases, _ = masked_cases(1)
    assert rank(cases, make_calibrator("ts", 5), True, Bootstrap(replicates=10)) is None


# On a machine that is busy an example may take long.
SLOWLY = settings(suppress_health_check=[HealthCheck.too_slow])

NUMBERS = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=2, max_size=12)


@SLOWLY
@given(NUMBERS)
def test_the_area_is_the_mean_of_mean_risks_of_the_most_trusted(pairs):
    trusted, risk = (np.array(each, float) for each in zip(*pairs, strict=True))
    order = sorted(range(len(risk)), key=lambda k: -trusted[k])
    by_hand = np.mean([np.mean([risk[k] for k in order[:n]]) for n in range(1, len(risk) + 1)])
    assert risk_area(trusted, risk) == pytest.approx(by_hand)
    assert risk_area(trusted, risk) >= risk_area(-risk, risk) - 1e-9


@SLOWLY
@given(NUMBERS)
def test_the_generalised_area_is_by_trapezoids_through_the_origin(pairs):
    trusted, risk = (np.array(each, float) for each in zip(*pairs, strict=True))
    order = sorted(range(len(risk)), key=lambda k: -trusted[k])
    curve = [sum(risk[k] for k in order[:n]) / len(risk) for n in range(len(risk) + 1)]
    assert generalised_area(trusted, risk) == pytest.approx(np.trapezoid(curve, np.linspace(0, 1, len(curve))))
    assert generalised_area(trusted, risk) >= generalised_area(-risk, risk) - 1e-9


@SLOWLY
@given(NUMBERS)
def test_auroc_counts_pairs(pairs):
    trusted, risk = (np.array(each, float) for each in zip(*pairs, strict=True))
    bad = risk > 25
    wins = [
        (trusted[g] > trusted[b]) + 0.5 * (trusted[g] == trusted[b])
        for g in np.flatnonzero(~bad)
        for b in np.flatnonzero(bad)
    ]
    assert auroc(trusted, bad) == (pytest.approx(np.mean(wins)) if wins else None)


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(60)
    means = 4 * rng.normal(size=(5, 3, 9, 11))
    members = [[(mean + 0.4 * rng.normal(size=mean.shape)).astype("float32") for _ in range(3)] for mean in means]
    labels = [(mean + rng.gumbel(size=mean.shape)).argmax(0) for mean in means]
    cases = ArrayCases(members, labels, pooling="mean_logits").with_disagreement()
    return SumTable.of([Summer(cases, [make_calibrator("ts", 3)])(case_id)[0] for case_id in cases.ids])


def test_risk_is_the_mean_over_structures_that_are_there_or_found(table):
    assert risk_of(table, [1, 2]) == pytest.approx(1 - table.dice[:, 1:].mean(1))
    nowhere = SumTable(**{**table.__dict__, "mask": 0 * table.mask, "truth": 0 * table.truth})
    assert np.isnan(risk_of(nowhere, [1, 2])).all()


def test_every_way_has_one_number_per_case(table):
    found = rankings(table, [1, 2])
    assert len(found) == 7
    for values in found.values():
        assert values.shape == (5,)
        assert np.isfinite(values).all()
    assert found["mean confidence in the mask"] == pytest.approx(table.precision[:, 1:].mean(1))
    alone = SumTable(**{**table.__dict__, "agreement": np.full_like(table.agreement, np.nan)})
    assert len(rankings(alone, [1, 2])) == 5
