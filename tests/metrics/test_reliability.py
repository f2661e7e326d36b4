import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from segcal.errors import InputError
from segcal.metrics import METRICS
from segcal.metrics.base import Needs
from segcal.metrics.reliability import (
    average_calibration_error,
    boundary_calibration_error,
    classwise_calibration_error,
    debiased_calibration_error,
    equal_mass_calibration_error,
    expected_calibration_error,
    maximum_calibration_error,
    smooth_calibration_error,
)
from segcal.statistics import count_logits, find_bands
from segcal.statistics.reliability import Curve
from segcal.statistics.voxel_sample import sample_voxels

CONF = (0.55, 0.6, 0.6, 0.72, 0.88, 0.95, 0.97, 1.0, 1.0, 1.0)
RIGHT = (1, 0, 1, 1, 0, 1, 1, 1, 1, 0)


def bin_them(confidence, right, bins):
    """Bin in plain numpy: (lo, hi]."""
    index = np.clip(np.searchsorted(np.arange(bins + 1) / bins, confidence, side="left") - 1, 0, bins - 1)
    count, hits, total = (
        np.bincount(index, weights=w, minlength=bins) for w in (np.ones(len(index)), right, confidence)
    )
    return Curve(count.astype(int), hits.astype(int), total)


def test_the_worked_examples():
    curve = bin_them(CONF, RIGHT, 15)
    assert expected_calibration_error(curve) == pytest.approx(0.233, abs=1e-9)
    assert average_calibration_error(curve) == pytest.approx(0.3568333, abs=1e-7)
    assert expected_calibration_error(bin_them(CONF, RIGHT, 10)) == pytest.approx(0.233, abs=1e-9)
    # The name of the bug: accuracy 0 when all voxels are right (gap .9467 instead of .0533).
    right = bin_them((0.9, 0.95, 0.99), (1, 1, 1), 1)
    assert average_calibration_error(right) == pytest.approx(0.0533333, abs=1e-6)
    curve = Curve(np.array([2, 0, 4]), np.array([1, 0, 4]), np.array([0.4, 0.0, 3.0]))
    assert maximum_calibration_error(curve) == pytest.approx(0.3)
    assert average_calibration_error(curve) == pytest.approx((0.3 + 0.25) / 2)


def logits_of(confidence, right):
    """Two classes whose larger probability is the confidence; class 0 is always predicted."""
    p = torch.tensor(confidence, dtype=torch.float64)
    logits = torch.stack([p.log(), (1 - p).clamp(min=1e-300).log()])
    return logits, torch.tensor([1 - r for r in right])


def ece_one_by_one(q, labels, bins):
    total = 0.0
    for b in range(bins):
        inside = [v for v in range(len(labels)) if (b == 0 or max(q[v]) > b / bins) and max(q[v]) <= (b + 1) / bins]
        if inside:
            accuracy = sum(q[v].index(max(q[v])) == labels[v] for v in inside) / len(inside)
            confidence = sum(max(q[v]) for v in inside) / len(inside)
            total += len(inside) / len(labels) * abs(accuracy - confidence)
    return total


@settings(max_examples=15)
@given(seed=st.integers(0, 10**6), num_classes=st.integers(2, 6), voxels=st.integers(1, 60), bins=st.integers(1, 60))
def test_ece_against_plain_loops(seed, num_classes, voxels, bins):
    rng = np.random.default_rng(seed)
    logits = rng.normal(scale=2, size=(num_classes, voxels))
    labels = rng.integers(num_classes, size=voxels)
    q = (np.exp(logits) / np.exp(logits).sum(0)).T.tolist()
    tables = count_logits(torch.from_numpy(logits), torch.from_numpy(labels), bins=(bins,)).tables
    assert expected_calibration_error(tables.reliability[bins]["all"]) == pytest.approx(
        ece_one_by_one(q, labels.tolist(), bins), abs=1e-12
    )


def make_case(voxels=5000, num_classes=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(num_classes, voxels, generator=generator, dtype=torch.float64) * 2
    labels = torch.where(
        torch.rand(voxels, generator=generator) < 0.5,
        logits.argmax(0),
        torch.randint(num_classes, (voxels,), generator=generator),
    )
    return logits, labels


@pytest.mark.filterwarnings("ignore")
def test_other_libraries_agree_where_they_are_right():
    from fiducio.metrics import expected_calibration_error as fiducio_ece
    from fiducio.metrics import unweighted_calibration_error as fiducio_ace
    from netcal.metrics import ACE, ECE
    from torchmetrics.functional.classification import multiclass_calibration_error

    logits, labels = make_case()
    q = torch.softmax(logits, 0)
    tables = count_logits(logits, labels).tables
    ece = METRICS["ece"](tables)
    assert float(multiclass_calibration_error(q.T, labels, 4, n_bins=50)) == pytest.approx(ece, abs=1e-6)
    assert ECE(50).measure(q.T.numpy(), labels.numpy()) == pytest.approx(ece, abs=1e-9)
    assert fiducio_ece(q[None], labels[None], n_bins=50) == pytest.approx(ece, abs=1e-9)
    assert ACE(15).measure(q.T.numpy(), labels.numpy()) == pytest.approx(METRICS["ace"](tables), abs=1e-9)
    assert fiducio_ace(q[None], labels[None], n_bins=15) == pytest.approx(METRICS["ace"](tables), abs=1e-9)


def test_right_and_wrong_predictions_apart():
    tables = count_logits(*logits_of((0.9, 0.7, 0.6), (1, 1, 0)), bins=(50, 15)).tables
    assert METRICS["ece_correct"](tables) == pytest.approx((0.1 + 0.3) / 2)
    assert METRICS["ece_wrong"](tables) == pytest.approx(0.6)
    alone = count_logits(*logits_of((0.9,), (1,))).tables
    assert METRICS["ece_wrong"](alone) is None


def classes_case(seed=0, num_classes=4, voxels=700):
    rng = np.random.default_rng(seed)
    logits = rng.normal(scale=2, size=(num_classes, voxels))
    labels = rng.integers(num_classes - 1, size=voxels)  # the last class is never true
    labels[: voxels // 2] = np.minimum(logits.argmax(0), num_classes - 2)[: voxels // 2]
    return logits, labels


def errors_one_by_one(logits, labels, chosen, bins=15):
    q = np.exp(logits) / np.exp(logits).sum(0)
    errors = []
    for c in range(len(q)):
        error = 0.0
        for b in range(bins):
            inside = [v for v in chosen if (b == 0 or q[c, v] > b / bins) and q[c, v] <= (b + 1) / bins]
            error += abs(sum(q[c, v] - (labels[v] == c) for v in inside)) / len(chosen)
        errors.append(error)
    return errors


@pytest.mark.parametrize("region", ["all", "foreground", "union"])
def test_cece_against_plain_loops_in_every_region(region):
    logits, labels = classes_case()
    prediction = logits.argmax(0)
    chosen = {
        "all": range(700),
        "foreground": [v for v in range(700) if labels[v] > 0],
        "union": [v for v in range(700) if labels[v] > 0 or prediction[v] > 0],
    }[region]
    errors = errors_one_by_one(logits, labels, list(chosen))
    tables = count_logits(torch.from_numpy(logits), torch.from_numpy(labels)).tables
    name = "cece" if region == "all" else f"cece_{region}"
    assert METRICS[name](tables) == pytest.approx(np.mean(errors), abs=1e-12)
    curve = tables.classwise[region]
    assert classwise_calibration_error(curve, classes="sum") == pytest.approx(sum(errors), abs=1e-12)
    assert classwise_calibration_error(curve, classes="up_to_largest") == pytest.approx(np.mean(errors[:3]), abs=1e-12)
    present = errors[:3] if region != "foreground" else errors[1:3]
    assert classwise_calibration_error(curve, classes="present") == pytest.approx(np.mean(present), abs=1e-12)


@pytest.mark.filterwarnings("ignore")
def test_monai_agrees_where_it_computes_the_same():
    from monai.metrics.calibration import CalibrationErrorMetric

    logits, labels = classes_case(2)
    q = torch.softmax(torch.from_numpy(logits), 0)[None]
    hot = torch.nn.functional.one_hot(torch.from_numpy(labels), 4).T[None]
    theirs = CalibrationErrorMetric(num_bins=15)(q.double(), hot)
    tables = count_logits(torch.from_numpy(logits), torch.from_numpy(labels)).tables
    assert METRICS["cece"](tables) == pytest.approx(float(theirs.mean()), abs=1e-6)


def test_a_case_without_foreground_has_no_foreground_error():
    tables = count_logits(torch.tensor([[1.0, 2.0], [0.0, 0.0]]), torch.tensor([0, 0])).tables
    assert METRICS["cece_foreground"](tables) is None
    assert METRICS["ece_foreground"](tables) is None
    assert METRICS["ece_union"](tables) is None


def test_an_unknown_choice_of_classes_is_refused():
    curve = Curve(np.ones((2, 3), int), np.ones((2, 3), int), np.ones((2, 3)))
    with pytest.raises(
        InputError, match=r"no classes is named 'some'. Choose one of: all, present, up_to_largest, sum"
    ):
        classwise_calibration_error(curve, classes="some")


def boundary_example():
    labels = np.array([[0] * 4 + [1] * 20])
    prediction = labels.copy()
    prediction[0, [2, 3]], prediction[0, 9] = 1, 0
    confidence = np.full((1, 24), 0.9)
    confidence[0, 1:7], confidence[0, 19:] = 0.7, 0.99
    q = np.stack([np.where(prediction == c, confidence, 1 - confidence) for c in range(2)])
    return torch.from_numpy(np.log(q)), torch.from_numpy(labels)


def count_bands(logits, labels):
    return count_logits(logits, labels, bands=find_bands(labels.numpy())).tables


def test_the_boundary_example():
    tables = count_bands(*boundary_example())
    # First band: index 1 to 6, confidence 0.7, four of six right; all in one bin.
    assert METRICS["ece_boundary"](tables) == pytest.approx(abs(4 / 6 - 0.7), abs=1e-12)
    interior = (abs(12 - 13 * 0.9) + abs(5 - 5 * 0.99)) / 18
    assert METRICS["ece_interior"](tables) == pytest.approx(interior, abs=1e-12)
    assert METRICS["ba_ece"](tables) == pytest.approx(0.0540819, abs=1e-7)
    curve, bands = tables.bands.curves[50].summed(1), tables.bands
    doubt = 1 - curve.confidence[:4] / bands.count
    wrong = 1 - curve.right[:4] / bands.count
    np.testing.assert_allclose(doubt, [0.3, 0.1, 0.1, 0.01], atol=1e-12)
    np.testing.assert_allclose(wrong, [1 / 3, 0.2, 0, 0], atol=1e-12)
    np.testing.assert_allclose(1 / (1 + bands.distance / bands.count), [0.5, 0.192308, 0.086957, 0.055556], atol=1e-6)


def test_bins_within_a_band_are_the_other_reading():
    logits, labels = boundary_example()
    logits[:, 0, ::2] *= 0.4  # within a band, confidences now differ
    bands = count_bands(logits, labels).bands
    q = torch.softmax(logits, 0).numpy().reshape(2, 24)
    confidence, right = q.max(0), q.argmax(0) == labels.numpy().ravel()
    d = np.array([3, 2, 1, 0, *range(20)])
    one_gap, binned, weights = [], [], []
    for inside in (d < 3, (d >= 3) & (d < 7), (d >= 7) & (d < 15), d >= 15):
        slot = np.ceil(confidence * 50)
        gaps = [(right - confidence)[inside & (slot == s)].sum() for s in range(51)]
        one_gap.append(abs(sum(gaps)) / inside.sum())
        binned.append(np.abs(gaps).sum() / inside.sum())
        weights.append(1 / (1 + d[inside].mean()))
    assert boundary_calibration_error(bands) == pytest.approx(np.average(one_gap, weights=weights), abs=1e-12)
    assert boundary_calibration_error(bands, bins_within_band=50) == pytest.approx(
        np.average(binned, weights=weights), abs=1e-12
    )
    assert np.average(binned, weights=weights) > np.average(one_gap, weights=weights) + 0.01
    with pytest.raises(InputError, match=r"bins_within_band is 20, but \[15, 50\] bins were counted"):
        boundary_calibration_error(bands, bins_within_band=20)


def test_a_map_without_boundary_has_none():
    tables = count_bands(torch.zeros(2, 4, 5), torch.zeros(4, 5, dtype=torch.int64))
    assert METRICS["ba_ece"](tables) is None
    assert METRICS["ece_boundary"](tables) is None
    assert METRICS["ece_interior"](tables) == pytest.approx(0.5)


def test_what_chance_adds_is_taken_off():
    from scipy.integrate import quad

    rng = np.random.default_rng(5)
    count = np.array([0, 7, 40, 3, 200])
    right = np.array([0, 4, 39, 3, 100])
    confidence = count * np.array([0.1, 0.3, 0.5, 0.7, 0.9]) + rng.random(5) * (count > 0)
    total = 0.0
    for n, hits, sums in zip(count[1:], right[1:], confidence[1:], strict=True):
        gap, spread = abs(hits - sums) / n, math.sqrt(hits / n * (1 - hits / n) / n)

        def folded(u, gap=gap, spread=spread):
            return abs(gap + spread * u) * math.exp(-u * u / 2) / math.sqrt(2 * math.pi)

        zero = [-gap / spread] if spread else None
        by_chance = quad(folded, -12, 12, points=zero, epsabs=1e-13)[0] if spread else gap
        total += n * (2 * gap - by_chance)
    assert debiased_calibration_error(Curve(count, right, confidence)) == pytest.approx(total / 250, abs=1e-9)


@pytest.mark.parametrize(("bins", "n"), [(15, 100), (4, 13), (15, 7)])
def test_bins_of_equal_mass_hold_as_many_voxels_each(bins, n):
    rng = np.random.default_rng(7)
    p, hits = 0.5 + rng.random(n) / 2, rng.integers(0, 2, n)
    logits = torch.from_numpy(np.stack([np.log(p / (1 - p)), 0 * p]))
    sample = sample_voxels(logits, torch.from_numpy(1 - hits))
    order, ends = np.argsort(p), [round(k * n / bins) for k in range(bins + 1)]
    gaps = [abs((hits - p)[order[a:b]].sum()) for a, b in pairwise(ends)]
    assert equal_mass_calibration_error(sample, bins) == pytest.approx(sum(gaps) / n, abs=1e-9)


def test_voxels_of_one_confidence_are_in_one_bin():
    logits = torch.tensor([[3.0] * 50 + [1.0] * 10, [0.0] * 60])
    sample = sample_voxels(logits, torch.tensor([0, 1] * 30))
    p = 1 / (1 + math.exp(-3)), 1 / (1 + math.exp(-1))
    expected = (50 * abs(0.5 - p[0]) + 10 * abs(0.5 - p[1])) / 60
    assert equal_mass_calibration_error(sample) == pytest.approx(expected, abs=1e-9)


# Made with relplot 1.0.3 (smECE) from the voxels of `make`, whose widths it searches in steps of 1/1024.
RELPLOT = {0: 0.11660598099266355, 1: 0.20541376658433985}
SHARES = st.floats(0, 1)


def make(seed, n=300):
    rng = np.random.default_rng(seed)
    p = 0.5 + rng.random(n) / 2
    return p, (rng.random(n) < p - 0.1 - 0.1 * seed).astype(float)


def by_quadrature(p, right, width, cells=1000):
    """The integral of the smoothed residuals: every residual at the centre of its cell, over six widths."""
    centre = (np.arange(cells) + 0.5) / cells
    at = centre[np.minimum(np.ceil(p * cells).astype(int) - 1, cells - 1)]
    reach = int(6 * width * cells + 0.5) / cells + 0.5 / cells
    weights = np.arange(-int(6 * width * cells + 0.5), int(6 * width * cells + 0.5) + 1) / cells
    norm = np.exp(-(weights**2) / (2 * width**2)).sum()
    total = np.zeros(cells)
    for position, residual in zip(at, right - p, strict=True):
        for image in [s * position + 2 * k for k in range(-8, 9) for s in (1, -1)]:
            gap = centre - image
            total += residual * np.where(np.abs(gap) <= reach, np.exp(-(gap**2) / (2 * width**2)), 0) / norm
    return np.abs(total).sum() / len(p)


def curve_of(p, right):
    logits = torch.from_numpy(np.stack([np.log(p) - np.log1p(-p), 0 * p]))
    needs = Needs.of([METRICS["smooth_ece"]])
    return needs.count(logits, torch.from_numpy(1 - right.astype(np.int64))).tables.reliability[1000]["all"]


@pytest.mark.parametrize("seed", [0, 1])
def test_at_its_own_width_the_error_is_the_width(seed):
    p, right = make(seed, 60)
    found = smooth_calibration_error(curve_of(p, right))
    assert by_quadrature(p, right, found) == pytest.approx(found, abs=1e-6)


@pytest.mark.parametrize("seed", [0, 1])
def test_it_is_that_of_relplot_within_a_step_of_its_search(seed):
    assert smooth_calibration_error(curve_of(*make(seed))) == pytest.approx(RELPLOT[seed], abs=2e-3)


def test_a_constant_gap_is_the_error_and_nothing_has_none():
    count = np.zeros(1000, np.int64)
    count[700:900] = 5
    confidence = count * (np.arange(1000) + 0.5) / 1000
    curve = Curve(count, (confidence - 0.25 * count), confidence)
    assert smooth_calibration_error(curve) == pytest.approx(0.25, abs=1e-9)
    assert math.isnan(smooth_calibration_error(Curve(0 * count, 0 * count, 0.0 * confidence)))


@settings(max_examples=20)
@given(st.lists(st.tuples(st.integers(0, 99), st.integers(1, 50), SHARES, SHARES), min_size=1, max_size=8))
def test_smoothing_and_taking_chance_off_add_no_error(voxels):
    count, right, confidence = np.zeros(100, np.int64), np.zeros(100, np.int64), np.zeros(100)
    for place, n, share, within in voxels:
        count[place] += n
        right[place] += round(share * n)
        confidence[place] += n * (place + within) / 100
    curve = Curve(count, right, confidence)
    whole = expected_calibration_error(curve)
    assert 0 <= smooth_calibration_error(curve) <= whole + 1e-9
    assert 0 <= debiased_calibration_error(curve) <= whole + 1e-12
    mean_gap = abs(right.sum() - confidence.sum()) / count.sum()
    assert smooth_calibration_error(curve) >= min(mean_gap, 1) - 1e-9  # smoothing keeps the sum of residuals
