"""Rankings of cases and how they are judged, by hand."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from segcal.trust.failures import auroc, excess_area, rankings, risk_area, risk_of
from segcal.trust.learn import Summer
from segcal.trust.table import SumTable

# On a machine that is busy an example may take long.
SLOWLY = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

NUMBERS = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=2, max_size=12)


@SLOWLY
@given(NUMBERS)
def test_the_area_is_the_mean_of_mean_risks_of_the_most_trusted(pairs):
    trusted, risk = (np.array(each, float) for each in zip(*pairs, strict=True))
    order = sorted(range(len(risk)), key=lambda k: -trusted[k])
    by_hand = np.mean([np.mean([risk[k] for k in order[:n]]) for n in range(1, len(risk) + 1)])
    assert risk_area(trusted, risk) == pytest.approx(by_hand)
    assert excess_area(trusted, risk) >= -1e-9
    assert excess_area(-risk, risk) == pytest.approx(0)


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
def table(make_cases, fitted):
    cases = make_cases(5, seed=60).with_disagreement()
    return SumTable.of([Summer(fitted.calibrator, cases)(case_id) for case_id in cases.ids])


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
