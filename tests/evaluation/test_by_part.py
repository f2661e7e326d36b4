import numpy as np
import pytest

from segcal import ArrayCases, evaluate, make_calibrator
from segcal.evaluation.by_part import divide_by_part, document, labelled_rows, related
from segcal.fitting.certificate import Certificate, Fitted
from segcal.fitting.config import FitConfig


@pytest.fixture
def cases():
    rng = np.random.default_rng(0)
    logits = [rng.normal(size=(3, 5, 6)) for _ in range(4)]
    labels = [rng.integers(3, size=(5, 6)) for _ in range(4)]
    return ArrayCases(logits, labels, ids=["a", "b", "c", "d"], groups=["x", "x", "y", "z"])


def fitted(calibration, validation=()):
    certificate = Certificate("convex", 1.0, 1.0, 0.0, True, 1, 1, 1)
    return Fitted(
        make_calibrator("ts", 3), certificate, FitConfig(), calibration_ids=calibration, validation_ids=validation
    )


def test_held_out_cases_come_first_and_validation_cases_are_not_held_out(cases):
    parts = divide_by_part(cases, fitted(("a",), ("c", "elsewhere")))
    assert {name: part.ids for name, part in parts.items()} == {"held out": ("b", "d"), "fitted on": ("a", "c")}
    assert list(parts) == ["held out", "fitted on"]


def test_parts_without_cases_are_left_out(cases):
    assert list(divide_by_part(cases, fitted(("elsewhere",)))) == ["held out"]
    assert list(divide_by_part(cases, fitted(cases.ids))) == ["fitted on"]
    assert list(divide_by_part(cases, None)) == ["all"]


def test_held_out_relatives_are_counted(cases):
    assert related(divide_by_part(cases, fitted(("a",)))) == 1  # b
    assert related(divide_by_part(cases, fitted(("a", "b")))) == 0
    assert related(divide_by_part(cases, None)) == 0


def test_the_document_has_the_first_part_at_the_top_and_rows_name_their_part(cases):
    parts = divide_by_part(cases, fitted(("a",)))
    results = {name: evaluate(part, make_calibrator("ts", 3), ["nll"]) for name, part in parts.items()}
    made = document(results)
    assert made["part"] == "held out"
    assert made["cases"] == 3
    assert made["before"]["nll"]["value"] == results["held out"].before["nll"].value
    assert made["fitted_on"]["cases"] == 1
    assert made["fitted_on"]["after"]["nll"]["value"] == results["fitted on"].after["nll"].value
    rows = labelled_rows(results)
    assert [(row["case"], row["part"]) for row in rows if row["stage"] == "before"] == [
        ("b", "held out"), ("c", "held out"), ("d", "held out"), ("a", "fitted on"),
    ]  # fmt: skip
    assert list(rows[0])[:2] == ["case", "part"]
    alone = document({"all": evaluate(cases, metrics=["nll"])})
    assert alone["fitted_on"] is None
    assert alone["after"] is None
