import numpy as np
import pytest

from segcal import ArrayCases, InputError, SuspicionWarning, evaluate, make_calibrator
from segcal.cases import CaseError
from segcal.evaluation.by_part import divide_by_part, document, evaluate_by_part, labelled_rows, related
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


def test_parts_are_measured_apart_and_held_out_relatives_are_named(cases):
    own = fitted(("a", "c"))
    with pytest.warns(SuspicionWarning, match="1 held-out cases belong to groups of which other cases were fitted on"):
        found = evaluate_by_part(cases, own, metrics=["nll"], replicates=20)
    for name, ids in (("held out", ["b", "d"]), ("fitted on", ["a", "c"])):
        expected = evaluate(cases.subset(ids), own.calibrator, metrics=["nll"], replicates=20)
        assert found[name].after == expected.after


def test_where_nothing_was_held_out_a_warning_says_so(cases):
    with pytest.warns(SuspicionWarning, match="no case was held out; what the calibrator is worth"):
        assert list(evaluate_by_part(cases, fitted(cases.ids), metrics=["nll"], replicates=20)) == ["fitted on"]


class Broken(ArrayCases):
    """Cases of which some cannot be read."""

    broken = ("b", "d")

    def read(self, case_id):
        if case_id in self.broken:
            raise CaseError(case_id, "is broken")
        return super().read(case_id)


def test_a_part_of_which_all_cases_fail_is_left_out_and_all_parts_are_an_error(cases):
    rng = np.random.default_rng(0)
    broken = Broken([rng.normal(size=(3, 5, 6)) for _ in range(4)], [np.zeros((5, 6), int)] * 4, ids=list("abcd"))
    failed = []
    own = fitted(("a", "c"))
    with pytest.warns(SuspicionWarning, match="no case was held out"):
        found = evaluate_by_part(broken, own, failed.append, metrics=["nll"], replicates=20)
    assert list(found) == ["fitted on"]
    assert [error.case_id for error in failed] == ["b", "d"]
    with pytest.raises(CaseError, match="case 'b': is broken"):
        evaluate_by_part(broken, own, metrics=["nll"], replicates=20)
    broken.broken = tuple("abcd")
    with pytest.raises(InputError, match=r"all 4 cases failed, but at least one is needed. First: case 'b': is broken"):
        evaluate_by_part(broken, own, failed.append, metrics=["nll"], replicates=20)
