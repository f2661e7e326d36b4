import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import segcal
from segcal import ArrayCases, make_calibrator
from segcal.fitting.sample import SampledVoxels
from segcal.fitting.scores import (
    Noise,
    detection_quality,
    gap_sums,
    mean_nll,
    measure,
    noise,
    weighted_auroc,
)
from segcal.fitting.voxels import StreamedVoxels, Voxels

CPU = torch.device("cpu")


def silent():
    pass


def test_the_nll_is_the_weighted_mean_over_all_batches(make_data):
    logits, labels = make_data(4, 500)
    weight = np.random.default_rng(1).uniform(1, 9, size=500)
    batches = [
        Voxels(torch.tensor(logits[:, part]), torch.tensor(labels[part]).int(), torch.tensor(weight[part]))
        for part in (slice(0, 120), slice(120, 500))
    ]
    calibrator = make_calibrator("ts", 4)
    with torch.no_grad():
        calibrator.inverse_temperature.fill_(0.5)
    z = logits / 2
    expected = np.log(np.exp(z).sum(0)) - z[labels, np.arange(500)]
    assert mean_nll(calibrator, batches) == pytest.approx((weight * expected).sum() / weight.sum(), rel=1e-12)


def test_gaps_are_summed_in_half_open_bins():
    confidence = torch.tensor([0.1, 0.5, 0.500001, 1.0])
    right = torch.tensor([True, False, True, True])
    found = gap_sums(confidence, right, torch.tensor([1.0, 2.0, 1.0, 3.0]), bins=2)
    assert found.tolist() == pytest.approx([0.1 - 1 + 2 * 0.5, 0.500001 - 1 + 0.0], abs=1e-6)


def test_recall_precision_and_shares_are_weighted():
    margin, wrong = np.array([1.0, 2.0, -1.0, -3.0, 0.0]), np.array([True, False, True, False, False])
    found = detection_quality(margin, wrong, np.array([1.0, 3.0, 2.0, 4.0, 10.0]))
    assert found["recall"] == pytest.approx(1 / 3)
    assert found["precision"] == pytest.approx(1 / 4)
    assert found["flagged_share"] == pytest.approx(4 / 20)
    assert found["mispredicted_share"] == pytest.approx(3 / 20)


def test_what_has_no_denominator_is_none():
    found = detection_quality(np.array([-1.0, -2.0]), np.array([False, False]), np.ones(2))
    assert (found["recall"], found["precision"], found["auroc"]) == (None, None, None)


@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans(), st.integers(1, 4)), min_size=2, max_size=12))
def test_the_auroc_is_the_share_of_pairs_in_the_right_order(rows):
    pairs = [
        (a * b, 1.0 if x > y else 0.5 if x == y else 0.0)
        for x, positive, a in rows
        for y, other, b in rows
        if positive and not other
    ]
    score, positive, weight = (np.array(column) for column in zip(*rows, strict=True))
    found = weighted_auroc(score.astype(float), positive, weight.astype(float))
    if not pairs:
        assert found is None
    else:
        assert found == pytest.approx(sum(w * v for w, v in pairs) / sum(w for w, _ in pairs))


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


def test_the_noise_of_one_group_is_not_known():
    assert noise([1.0, 3.0], ["a", "a"], 1) == Noise(2.0, None)
    assert noise([1.0], ["a"], 1) == Noise(1.0, None)  # one validation case: not known, rather than 0


def test_cases_of_one_group_count_as_one():
    """Every case four times over says no more than once, though a plain standard error would be half as large."""
    once = noise([1.0, 2.0, 4.0], list("abc"), 1)
    copies = noise([1.0, 2.0, 4.0] * 4, list("abc") * 4, 1)
    assert copies.error == pytest.approx(once.error)


@pytest.mark.parametrize("streamed", [True, False])
def test_near_boundaries_a_case_is_worth_what_the_metric_says(streamed):
    """On all voxels of a case, its BA-ECE is that of :mod:`segcal.metrics`; without a boundary there is none."""
    rng = np.random.default_rng(0)
    logits = (2 * rng.normal(size=(2, 3, 21, 34))).astype("float32")
    labels = np.zeros((2, 21, 34), int)
    labels[0, :, 20:], labels[0, 3:9, 22:30], labels[0, :2] = 1, 2, -1
    cases = ArrayCases(list(logits), list(labels), ignore=-1)
    source = StreamedVoxels(cases, silent, contexts=["gap_image"])
    if not streamed:
        source = SampledVoxels(cases, 10_000, 0, silent, contexts=["gap_image"])
    found = measure(make_calibrator("identity", 3), source, CPU)
    assert found["0"].ba_ece == pytest.approx(float(segcal.metrics.ba_ece(logits[:1], labels[:1], ignore=-1)), rel=1e-5)
    assert found["1"].ba_ece is None
