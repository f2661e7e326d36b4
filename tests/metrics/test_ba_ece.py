import math

import numpy as np
import pytest
import torch

from segcal.errors import InputError
from segcal.metrics import METRICS
from segcal.metrics.ba_ece import boundary_calibration_error
from segcal.statistics import count_logits, find_bands


def worked_example():
    labels = np.array([[0] * 4 + [1] * 20])
    prediction = labels.copy()
    prediction[0, [2, 3]], prediction[0, 9] = 1, 0
    confidence = np.full((1, 24), 0.9)
    confidence[0, 1:7], confidence[0, 19:] = 0.7, 0.99
    q = np.stack([np.where(prediction == c, confidence, 1 - confidence) for c in range(2)])
    return torch.from_numpy(np.log(q)), torch.from_numpy(labels)


def count(logits, labels):
    return count_logits(logits, labels, bands=find_bands(labels.numpy())).tables


def test_the_worked_example():
    tables = count(*worked_example())
    assert METRICS["ba_ece"](tables) == pytest.approx(0.0540819, abs=1e-7)
    curve, bands = tables.bands.curves[50].summed(1), tables.bands
    doubt = 1 - curve.confidence[:4] / bands.count
    wrong = 1 - curve.right[:4] / bands.count
    np.testing.assert_allclose(doubt, [0.3, 0.1, 0.1, 0.01], atol=1e-12)
    np.testing.assert_allclose(wrong, [1 / 3, 0.2, 0, 0], atol=1e-12)
    np.testing.assert_allclose(1 / (1 + bands.distance / bands.count), [0.5, 0.192308, 0.086957, 0.055556], atol=1e-6)


def test_bins_within_a_band_are_the_other_reading():
    logits, labels = worked_example()
    logits[:, 0, ::2] *= 0.4  # within a band, confidences now differ
    bands = count(logits, labels).bands
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


def test_bins_that_were_not_counted_are_refused():
    with pytest.raises(InputError, match=r"bins_within_band is 20, but \[15, 50\] bins were counted"):
        boundary_calibration_error(count(*worked_example()).bands, bins_within_band=20)


def test_a_map_without_boundary_has_none():
    tables = count(torch.zeros(2, 4, 5), torch.zeros(4, 5, dtype=torch.int64))
    assert METRICS["ba_ece"](tables) is None
    assert METRICS["ece_boundary"](tables) is None
    assert METRICS["ece_interior"](tables) == pytest.approx(0.5)


def test_boundary_and_interior_are_the_first_band_and_the_rest():
    tables = count(*worked_example())
    # First band: index 1 to 6, confidence 0.7, four of six right; all in one bin.
    assert METRICS["ece_boundary"](tables) == pytest.approx(abs(4 / 6 - 0.7), abs=1e-12)
    interior = (abs(12 - 13 * 0.9) + abs(5 - 5 * 0.99)) / 18
    assert METRICS["ece_interior"](tables) == pytest.approx(interior, abs=1e-12)


def test_ignored_voxels_are_in_no_band():
    logits, labels = worked_example()
    labels[0, 20:] = -1
    tables = count(logits, labels)
    assert tables.bands.count.tolist() == [6, 5, 8, 1]
    assert not math.isnan(METRICS["ba_ece"](tables))
