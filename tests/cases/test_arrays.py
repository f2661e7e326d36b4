import numpy as np
import pytest
import torch

from segcal.cases import ArrayCases
from segcal.errors import InputError


@pytest.fixture
def logits(rng):
    return [rng.normal(size=(3, 4, 5)).astype(np.float32) for _ in range(2)]


def test_a_case_has_everything_that_was_given(logits, rng):
    mask = np.ones((4, 5), bool)
    mask[0] = False
    labels, images = rng.integers(0, 3, (4, 5)), [np.zeros((1, 4, 5))] * 2
    more = {"masks": [mask, mask], "spacing": [(1, 2)] * 2, "images": images}
    case = ArrayCases(logits, [labels, labels], ids=["a", "b"], **more).read("b")
    assert torch.equal(case.logits, torch.from_numpy(logits[1]))
    assert (case.labels[0] == -1).all()
    assert np.array_equal(case.labels[1:].numpy(), labels[1:])
    assert case.spacing == (1.0, 2.0)
    assert case.image.shape == (1, 4, 5)


def test_members_are_pooled_as_declared_and_can_be_read_one_by_one(logits):
    cases = ArrayCases([logits], pooling="mean_logits")
    np.testing.assert_allclose(cases.read("0").logits, (logits[0] + logits[1]) / 2, rtol=1e-6)
    assert cases.member_names == ("member 0", "member 1")
    for found, given in zip(cases.member_logits("0"), logits, strict=True):
        assert np.array_equal(found, given)
    assert ArrayCases(logits).member_names == ()


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"logits": []}, "logits is empty"),
        ({"labels": [np.zeros((4, 5), int)]}, "labels has 1 entries, but logits has 2 cases"),
        ({"ids": ["a", "a"]}, "ids contains 'a' more than once"),
        ({"class_names": ["x"]}, "class_names has 1 names, but the logits have 3 classes"),
        ({"kind": "prob"}, "no kind is named 'prob'"),
        ({"pooling": "mean"}, "no pooling is named 'mean'"),
    ],
)
def test_columns_that_do_not_fit_are_refused(options, match, logits):
    with pytest.raises(InputError, match=match):
        ArrayCases(**({"logits": logits} | options))


def test_members_need_a_pooling_and_classes_must_agree_between_cases(logits):
    with pytest.raises(InputError, match="logits of case '0' is a list of 2 members, but no pooling is declared"):
        ArrayCases([logits]).read("0")
    match = r"logits of case '1' has shape \(2, 4, 5\), but \(3, \*space\) like the cases"
    with pytest.raises(InputError, match=match):
        ArrayCases([logits[0], logits[1][:2]]).read("1")


def test_probabilities_must_be_declared_and_may_be_declared_as_logits(rng):
    probs = rng.dirichlet(np.ones(3), (4, 5)).transpose(2, 0, 1).astype(np.float32)
    match = (
        r"kind is not declared, but logits of case '0' lie in 0 to 1 and sum to 1 as probabilities do\. "
        r"Pass kind='probs', or kind='logits' if they are logits all the same\."
    )
    for given, pooling in ([probs], None), ([[probs, probs]], "mean_probs"):
        with pytest.raises(InputError, match=match):
            ArrayCases(given, pooling=pooling)
    assert next(iter(ArrayCases([probs], kind="logits"))).kind_warning
    assert not next(iter(ArrayCases([probs], kind="probs"))).kind_warning
