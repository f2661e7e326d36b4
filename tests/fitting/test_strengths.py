"""Which strength is taken: counted by hand, for classes and for regions."""

from types import SimpleNamespace

import numpy as np
import pytest

from segcal import ArrayCases
from segcal.cases.region_view import region_view
from segcal.fitting.scores import Worth
from segcal.fitting.strengths import _rises, lowest, mean_over_cases, strongest_as_good, without_harm

IDS = [f"c{number}" for number in range(8)]


def worths(ece, ba_ece, nll=1.0):
    return {"a": Worth(nll, ece, ba_ece), "b": Worth(nll, ece, None)}


@pytest.mark.parametrize(("ece", "ba_ece", "kept"), [(0.101, 0.2, True), (0.103, 0.2, False), (0.05, 0.205, False)])
def test_of_a_guarded_calibrator_no_strength_stays_that_raises_an_error(ece, ba_ece, kept):
    found = {1e5: worths(0.1, 0.2), 1e-3: worths(ece, ba_ece, nll=0.5)}
    assert (1e-3 in without_harm(found)) == kept
    assert 1e5 in without_harm(found)


def test_of_equal_strengths_the_strongest_is_the_lowest():
    found = {10.0: worths(0, 0, 0.5), 1.0: worths(0, 0, 0.5), 0.1: worths(0, 0, 0.6)}
    assert lowest(found) == 10.0
    assert mean_over_cases({"a": Worth(1.0, 0), "b": Worth(2.0, 0)}) == 1.5


def asked(kind, guarded):
    """What is asked for: cases of classes, or of one region of such cases."""
    rng = np.random.default_rng(0)
    scores, labels = list(rng.normal(size=(8, 2, 5))), list(rng.integers(0, 2, (8, 5)))
    regions = {"a": [1, 2], "b": [2]} if kind == "region" else None
    cases = ArrayCases(scores, labels, ids=IDS, kind="logits", regions=regions)
    cases = region_view(cases, 0) if kind == "region" else cases
    return SimpleNamespace(judges=cases, calibrator=SimpleNamespace(guarded=guarded))


# One case alone makes the whole difference in NLL: its mean is its standard error, which five folds raise by half. In
# BA-ECE all cases agree.
STRONG = {case_id: Worth(1.0 + (case_id == "c3"), 0.1, 0.30 + 0.01 * (case_id < "c4")) for case_id in IDS}
WEAK = {case_id: Worth(1.0, 0.1, 0.20) for case_id in IDS}


@pytest.mark.parametrize(
    ("kind", "guarded", "taken"),
    [("classes", True, 1e5), ("region", False, 1e5), ("region", True, 1e-3)],
)
def test_what_the_likelihood_cannot_tell_apart_is_told_by_the_errors_of_a_region(kind, guarded, taken):
    gaps = np.array([STRONG[case_id].nll - WEAK[case_id].nll for case_id in IDS])
    error = np.sqrt((1 + 5 / 4) * gaps.var(ddof=1) / 8)
    assert 0 < gaps.mean() < error
    assert strongest_as_good(asked(kind, guarded), {1e5: STRONG, 1e-3: WEAK}, 1e-3, 5) == taken


def test_an_error_that_is_nowhere_defined_decides_nothing():
    strong = {case_id: worth._replace(ba_ece=None) for case_id, worth in STRONG.items()}
    assert strongest_as_good(asked("region", True), {1e5: strong, 1e-3: WEAK}, 1e-3, 5) == 1e5


@pytest.mark.parametrize(
    ("means", "ends"),
    [
        ([1.0], False),
        ([1.0, 0.9, 0.8], False),
        ([1.0, 0.8, 0.89], False),  # less than half of what was gained
        ([1.0, 0.8, 0.91], True),
        ([1.0, 0.8, 0.81, 0.82], True),
        ([1.0, 0.8, 0.81, 0.805], False),
        ([1.0, 1.1], False),  # nothing was gained yet
        ([1.0, 1.1, 1.2], True),
    ],
)
def test_the_path_ends_where_the_likelihood_rises_twice_or_by_half_of_the_gain(means, ends):
    assert _rises(means) is ends
