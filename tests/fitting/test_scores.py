import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import segcal
from segcal import ArrayCases, make_calibrator
from segcal.fitting.scores import (
    Noise,
    both_nlls,
    detection_quality,
    gap_sums,
    in_steps,
    mean_nll,
    measure,
    noise,
    weighted_auroc,
)
from segcal.fitting.voxels import SampledVoxels, StreamedVoxels, Voxels

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


def test_long_batches_are_cut_and_lose_nothing():
    count = 300_000
    voxels = Voxels(torch.arange(8.0 * count).reshape(8, count), torch.arange(count).int(), torch.ones(count))
    parts = list(in_steps([voxels]))
    assert len(parts) == 2
    assert torch.equal(torch.cat([part.logits for part in parts], 1), voxels.logits)
    assert torch.equal(torch.cat([part.labels for part in parts]), voxels.labels)


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


def test_the_auroc_is_that_of_scikit_learn():
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(0)
    score, positive, weight = rng.normal(size=300).round(1), rng.random(300) < 0.3, rng.uniform(1, 5, 300)
    expected = metrics.roc_auc_score(positive, score, sample_weight=weight)
    assert weighted_auroc(score, positive, weight) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("with_validation", [True, False])
def test_both_nlls_are_those_of_calibration_and_validation_voxels(make_cases, with_validation):
    source, other = (SampledVoxels(make_cases(3, 400, seed=seed), 400, 0, lambda: None) for seed in (1, 2))
    calibrator = make_calibrator("ts", 3)
    with torch.no_grad():
        calibrator.inverse_temperature.fill_(0.4)
    request = SimpleNamespace(
        calibrator=calibrator, source=source, validation=other if with_validation else None, device=torch.device("cpu")
    )
    own, validation = both_nlls(request)
    expected = [
        float(torch.nn.functional.cross_entropy(0.4 * v.logits.double().T, v.labels.long()))
        for v in (next(iter(source)), next(iter(other)))
    ]
    assert own == pytest.approx(expected[0], rel=1e-6)
    assert validation == (pytest.approx(expected[1], rel=1e-6) if with_validation else None)


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
