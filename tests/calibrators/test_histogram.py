import numpy as np
import pytest
import torch

from segcal import make_calibrator
from segcal.errors import InputError


def made(edges, accuracy, known=None, classes=3):
    calibrator = make_calibrator("histogram", classes, bins=len(accuracy))
    calibrator.edges.copy_(torch.tensor(edges, dtype=torch.float64))
    calibrator.accuracy.copy_(torch.tensor(accuracy, dtype=torch.float64))
    calibrator.known.copy_(torch.tensor(known or [1.0] * len(accuracy), dtype=torch.float64))
    return calibrator


def by_hand(z, edges, accuracy):
    rows = []
    for voxel in z:
        p = np.exp(voxel - voxel.max())
        p /= p.sum()
        first = p.argmax()
        a = accuracy[sum(p[first] > edge for edge in edges)]
        q = (1 - a) * p / (p.sum() - p[first])
        q[first] = a
        rows.append(q)
    return np.array(rows)


def test_the_winner_gets_the_accuracy_of_its_bin_and_the_rest_is_spread_in_proportion(voxels):
    edges, accuracy = [0.5, 0.8, 0.95], [0.4, 0.6, 0.7, 0.9]
    z = voxels(3)
    np.testing.assert_allclose(made(edges, accuracy)(z).exp(), by_hand(z.numpy(), edges, accuracy), rtol=1e-9)


def test_a_bin_without_calibration_voxels_keeps_what_comes(voxels):
    z = voxels(3)
    found = made([0.9], [0.3, 0.6], [0.0, 1.0])(z)
    low = z.softmax(1).amax(1) <= 0.9
    assert 0 < int(low.sum()) < len(z)
    torch.testing.assert_close(found[low], z.log_softmax(1)[low])
    np.testing.assert_allclose(found[~low].exp(), by_hand(z[~low].numpy(), [0.9], [0.3, 0.6]), rtol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_saturated_voxels_have_finite_logarithms_in_the_right_proportion(dtype):
    found = made([0.5], [0.4, 1 - 1e-9])(torch.tensor([[200.0, 0.0, 1.0]], dtype=dtype))[0]
    assert bool(torch.isfinite(found).all())
    assert float(found[2] - found[1]) == pytest.approx(1.0, abs=1e-4)
    assert float(torch.logsumexp(found[1:], 0)) == pytest.approx(np.log(1e-9), rel=1e-4)


def test_a_low_accuracy_gives_the_voxel_away():
    z = torch.tensor([[2.0, 1.9, -3.0]], dtype=torch.float64)
    assert int(made([0.9], [0.2, 0.9])(z).argmax()) == 1


@pytest.mark.parametrize("bins", [0, 2.0, True])
def test_a_number_of_bins_that_is_none_is_refused(bins):
    with pytest.raises(InputError, match=f"bins is {bins}, but a count of at least 1 is needed"):
        make_calibrator("histogram", 3, bins=bins)
