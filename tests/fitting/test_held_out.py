import math

import numpy as np
import pytest
import torch

from segcal import make_calibrator
from segcal.fitting.held_out import Noise, each_fold, measure, noise, thinned
from segcal.fitting.voxels import SampledVoxels, StreamedVoxels

CPU = torch.device("cpu")


def silent():
    pass


@pytest.mark.parametrize("streamed", [True, False])
def test_what_a_case_says_is_its_nll_and_its_ece(make_cases, streamed):
    cases = make_cases(3, 900, parts=3, dtype="float32")
    source = StreamedVoxels(cases, silent) if streamed else SampledVoxels(cases, 1000, 0, silent)
    found = measure(make_calibrator("identity", 3), source, CPU)
    assert list(found) == list(cases.ids)
    for case in cases:
        probs = torch.softmax(case.logits.double(), 0).numpy()
        labels = case.labels.numpy()
        own = probs[labels, np.arange(len(labels))]
        assert found[case.id].nll == pytest.approx(-np.log(own).mean(), rel=1e-5)
        confidence, right = probs.max(0), probs.argmax(0) == labels
        bins = np.ceil(confidence * 15).astype(int)
        gaps = [abs((confidence - right)[bins == b].sum()) for b in range(1, 16)]
        assert found[case.id].ece == pytest.approx(sum(gaps) / len(labels), rel=1e-4)


def test_every_case_is_held_out_once_and_never_learned_from_then(make_cases):
    cases = make_cases(3, 700, parts=7)
    folds = list(each_fold(cases, SampledVoxels(cases, 1000, 0, silent), None, 3, 0))
    assert sorted(i for fold in folds for i in fold.held.ids) == sorted(cases.ids)
    for fold in folds:
        assert not set(fold.held.ids) & set(fold.learn.ids)
        assert set(fold.held.ids) | set(fold.learn.ids) == set(cases.ids)
        assert fold.cases.ids == fold.learn.ids


def test_validation_cases_are_one_fold(make_cases):
    cases, other = make_cases(3, 200, parts=2), make_cases(3, 300, seed=1, parts=2)
    source, held = (SampledVoxels(c, 1000, 0, silent) for c in (cases, other))
    (fold,) = each_fold(cases, source, held, 5, 0)
    assert fold.held is held
    assert fold.learn is source


@pytest.mark.parametrize("streamed", [True, False])
def test_thinning_keeps_the_shares_of_cases_and_the_weight(make_cases, streamed):
    cases = make_cases(3, 6000, parts=3)
    source = StreamedVoxels(cases, silent) if streamed else SampledVoxels(cases, 10_000, 0, silent)
    few = thinned(source, 1500, 0)
    assert abs(few.used - 1500) < 100
    assert few.total_weight == pytest.approx(6000, rel=0.1)
    assert few.ids == source.ids
    for case_id in few.ids:
        assert abs(few.subset([case_id]).used - 500) < 60
    assert thinned(source, 6000, 0) is source


@pytest.mark.parametrize("folds", [1, 2, 5])
def test_noise_is_that_of_sums_over_groups(folds):
    rng = np.random.default_rng(0)
    values, groups = rng.normal(size=11), list("aabbbccdefg")
    residual = values - values.mean()
    sums = [residual[[g == name for g in groups]].sum() for name in sorted(set(groups))]
    variance = 7 / 6 * sum(s * s for s in sums) / 11**2 * (1 if folds == 1 else 1 + folds / (folds - 1))
    found = noise(values, groups, folds)
    assert found.mean == pytest.approx(values.mean())
    assert found.error == pytest.approx(math.sqrt(variance))


def test_without_groups_and_folds_noise_is_the_standard_error():
    values = np.random.default_rng(1).normal(size=9)
    assert noise(values, list("abcdefghi"), 1).error == pytest.approx(values.std(ddof=1) / 3)


def test_the_noise_of_one_group_is_not_known():
    assert noise([1.0, 3.0], ["a", "a"], 1) == Noise(2.0, None)
    assert noise([1.0], ["a"], 1) == Noise(1.0, None)  # one validation case: not known, rather than 0


def test_cases_of_one_group_count_as_one():
    """Every case four times over says no more than once, though a plain standard error would be half as large."""
    once = noise([1.0, 2.0, 4.0], list("abc"), 1)
    copies = noise([1.0, 2.0, 4.0] * 4, list("abc") * 4, 1)
    assert copies.error == pytest.approx(once.error)
