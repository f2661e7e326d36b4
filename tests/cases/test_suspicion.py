import numpy as np
import pytest

from segcal.cases import ArrayCases
from segcal.cases.base import SINGLE_FOLDS
from segcal.cases.suspicion import Suspicion, doubtful_kind, like_probabilities, other_origin, single_folds, warn
from segcal.errors import SuspicionWarning

PROBS = np.random.default_rng(0).dirichlet(np.ones(3), 20).T.astype(np.float32)


def test_a_few_cases_are_named_and_the_others_counted():
    assert str(Suspicion("odd.", ("a", "b"))) == "a, b: odd."
    assert str(Suspicion("odd.", tuple("abcdefg"))) == "a, b, c, d, e and 2 more: odd."
    assert str(Suspicion("odd.")) == "odd."


def test_each_is_one_warning_at_the_line_that_called():
    with pytest.warns(SuspicionWarning) as found:
        warn([Suspicion("one."), Suspicion("two.", ("a",))], level=0)
    assert [str(one.message) for one in found] == ["one.", "a: two."]
    assert {one.filename for one in found} == {__file__}


def test_probabilities_declared_as_logits_are_seen_in_the_first_case_that_can_be_read():
    broken = np.full((3, 20), np.nan, np.float32)
    cases = ArrayCases([PROBS, broken, PROBS], kind="logits").subset(["1", "2"])
    text = "scores are declared as logits, but all lie in 0 to 1 and sum to 1. Declare kind='probs' if so."
    assert doubtful_kind(cases) == [Suspicion(text, ("2",))]
    assert doubtful_kind(cases.subset(["1"])) == []
    assert doubtful_kind(ArrayCases([PROBS], kind="probs")) == []
    assert doubtful_kind(ArrayCases([5 * PROBS])) == []
    assert like_probabilities([]) == []


@pytest.mark.parametrize("pooling", ["mean_logits", "mean_probs"])
def test_they_are_seen_before_members_are_pooled(pooling):
    assert doubtful_kind(ArrayCases([[PROBS, PROBS[::-1]]], pooling=pooling, kind="logits"))[0].ids == ("0",)


def test_single_folds_are_named_where_they_are_fitted_and_where_something_else_meets_them():
    assert "the ensemble of all folds has other confidences" in str(*single_folds(SINGLE_FOLDS))
    assert single_folds("") == []
    assert "fitted on predictions of single folds, and these come from elsewhere" in str(
        *other_origin(SINGLE_FOLDS, "")
    )
    assert other_origin(SINGLE_FOLDS, SINGLE_FOLDS) == other_origin("", "") == other_origin("", SINGLE_FOLDS) == []
