import numpy as np
import pytest
import torch

import segcal
from segcal.errors import InputError
from segcal.metrics.rows import CaseRows, CountedRow

LOGITS = 3 * torch.randn(5, 3, 7, 6, generator=torch.Generator().manual_seed(0))
LABELS = torch.randint(0, 3, (5, 7, 6), generator=torch.Generator().manual_seed(1))
NAMES = [name for name, metric in segcal.METRICS.items() if "reference" not in metric.needs]


def added(rows):
    return CountedRow(sum(row.counts for row in rows), sum(row.sums for row in rows))


@pytest.mark.parametrize("name", NAMES)
def test_rows_add_up_to_the_metric(name):
    reader = CaseRows(name, 3, "logits")
    found = reader.value(added(reader.rows(LOGITS[:2], LABELS[:2]) + reader.rows(LOGITS[2:], LABELS[2:])))
    expected = getattr(segcal.metrics, name)(LOGITS, LABELS)
    assert found == pytest.approx(np.nan if expected is None else expected, rel=1e-12, nan_ok=True)


@pytest.mark.parametrize("name", ["ece", "nll", "accuracy", "aurc"])
def test_one_number_of_all_voxels(name):
    reader = CaseRows(name, 3, "probs", average="voxels", ignore=2)
    rows = reader.rows(LOGITS.softmax(1), LABELS)
    expected = getattr(segcal.metrics, name)(LOGITS.softmax(1), LABELS, kind="probs", average="voxels", ignore=2)
    assert reader.value(added(rows)) == pytest.approx(expected, rel=1e-12)


def test_the_curve_is_that_of_the_bins_by_hand():
    reader = CaseRows("ece", 3, "logits", bins=4)
    curve = reader.curve(added(reader.rows(LOGITS, LABELS)))
    probs = torch.softmax(LOGITS.double(), 1).numpy()
    confidence, right = probs.max(1).ravel(), (probs.argmax(1) == LABELS.numpy()).ravel()
    place = np.ceil(confidence * 4).astype(int) - 1
    assert curve.count.tolist() == np.bincount(place, minlength=4).tolist()
    assert curve.right.tolist() == np.bincount(place, right, minlength=4).tolist()
    np.testing.assert_allclose(curve.confidence, np.bincount(place, confidence, minlength=4), rtol=1e-5)


def test_nothing_is_not_a_number():
    for name in ("ece", "ace", "miou"):
        reader = CaseRows(name, 3, "logits")
        assert np.isnan(reader.value(reader.empty))


def test_what_cannot_be_read_is_one_sentence():
    with pytest.raises(
        InputError, match=r"flip_rate compares two predictions, but one is given here. Choose one of: nll"
    ):
        CaseRows("flip_rate", 3, "logits")
    with pytest.raises(InputError, match=r"average is 'voxels', but the spread of .* belongs to one case each"):
        CaseRows("free_energy_std", 3, "logits", average="voxels")
    with pytest.raises(InputError, match="predictions have another number of classes"):
        CaseRows("miou", 4, "logits").rows(LOGITS, LABELS)
