"""Table 2 of the paper: properties, optimised and identifiable parameters, as literals."""

import pytest

from segcal import make_calibrator

# name: (translation-invariant, preserves, {C: (optimised, identifiable)}); vs and vs_ti by the same way of counting.
TABLE = {
    "ts": (True, "order", {2: (1, 1), 5: (1, 1), 20: (1, 1)}),
    "ets": (True, "order", {2: (4, 3), 5: (4, 3), 20: (4, 3)}),
    "ms": (False, None, {2: (6, 3), 5: (30, 24), 20: (420, 399)}),
    "ms_c": (True, None, {2: (5, 2), 5: (26, 20), 20: (401, 380)}),
    "dc": (True, None, {2: (6, 3), 5: (30, 24), 20: (420, 399)}),
    "cdc": (True, None, {2: (12, 6), 5: (150, 120), 20: (8400, 7980)}),
    "cms_ap": (True, "argmax", {2: (10, 4), 5: (130, 100), 20: (8020, 7600)}),
    "cms_op": (True, "order", {2: (10, 4), 5: (130, 100), 20: (8020, 7600)}),
    "vs": (False, None, {2: (4, 3), 5: (10, 9), 20: (40, 39)}),
    "vs_ti": (True, None, {2: (3, 2), 5: (6, 5), 20: (21, 20)}),
    "identity": (True, "order", {2: (0, 0), 5: (0, 0), 20: (0, 0)}),
}


@pytest.mark.parametrize("classes", [2, 5, 20])
@pytest.mark.parametrize("name", TABLE)
def test_counts_are_those_of_the_paper(name, classes):
    calibrator = make_calibrator(name, classes)
    assert (calibrator.num_parameters(), calibrator.num_identifiable()) == TABLE[name][2][classes]


@pytest.mark.parametrize("name", TABLE)
def test_promises_are_those_of_the_paper(name):
    calibrator = make_calibrator(name, 5)
    assert (calibrator.translation_invariant, calibrator.preserves) == TABLE[name][:2]


def test_dirichlet_calibration_of_150_classes_has_22650_parameters():
    assert make_calibrator("dc", 150).num_parameters() == 22_650
