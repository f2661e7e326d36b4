"""Isotonic calibration and histogram binning."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import softmax

from segcal import make_calibrator


def isotonic(points, values, classes=3, knots=8):
    """A calibrator with this function; the last point is repeated."""
    calibrator = make_calibrator("isotonic", classes, knots=knots)
    room = knots - len(points)
    calibrator.points.copy_(torch.tensor([*points, *[points[-1]] * room], dtype=torch.float64))
    calibrator.values.copy_(torch.tensor([*values, *[values[-1]] * room], dtype=torch.float64))
    calibrator.used.fill_(1.0)
    return calibrator


def test_every_class_goes_through_the_same_function(voxels):
    points, values = [0.0, 0.2, 0.5, 0.9], [0.0, 0.1, 0.1, 0.8]
    p = softmax(voxels(3).numpy(), -1)
    q = np.maximum(np.interp(p, points, values) + 1e-9 * p, 1e-12)
    np.testing.assert_allclose(isotonic(points, values)(voxels(3)).exp(), q / q.sum(-1, keepdims=True), rtol=1e-9)


def test_with_foreground_the_function_is_that_of_class_1_alone():
    calibrator = make_calibrator("isotonic", 2, knots=4, foreground=True)
    calibrator.points.copy_(torch.tensor([0.0, 0.2, 0.5, 1.0]))
    calibrator.values.copy_(torch.tensor([0.1, 0.3, 0.35, 0.8]))
    calibrator.used.fill_(1.0)
    logits = torch.tensor([[0.0, -2.0], [1.0, 1.5], [0.0, 4.0]], dtype=torch.float64)
    points, values = (x.double().numpy() for x in (calibrator.points, calibrator.values))
    expected = np.interp(softmax(logits.numpy(), -1)[:, 1], points, values)
    np.testing.assert_allclose(calibrator(logits).exp()[:, 1], expected, rtol=1e-6)
    assert int(calibrator(logits).argmax(1)[1]) == 0  # the decision was moved


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_winner_stays_visible_where_the_function_is_flat(dtype, voxels):
    logits = voxels(3).to(dtype)
    assert torch.equal(isotonic([0.0, 1.0], [0.3, 0.3])(logits).argmax(1), logits.argmax(1))


def test_zero_is_floored_and_its_logarithm_is_finite():
    found = isotonic([0.0, 0.9, 1.0], [0.0, 0.0, 1.0])(torch.tensor([[9.0, 0.0, -100.0]], dtype=torch.float64))
    assert float(found[0, 2]) == pytest.approx(np.log(1e-12), abs=1e-2)


@settings(max_examples=60)
@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=4),
    st.lists(st.floats(-40, 40, width=32), min_size=5, max_size=5),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_no_function_changes_the_order_of_two_classes(steps, logits, dtype):
    values = np.cumsum([0.0, *steps]).tolist()
    calibrator = isotonic(np.linspace(0, 1, len(values)).tolist(), values, classes=5)
    z = torch.tensor([logits], dtype=dtype)
    ordered = calibrator.scores(z)[0][z[0].argsort(descending=True, stable=True)]
    assert bool((ordered[1:] <= ordered[:-1]).all())


def test_a_function_that_falls_is_seen():
    assert isotonic([0.0, 1.0], [0.5, 0.2]).evidence()["decision"].violation == pytest.approx(0.3)
    assert isotonic([0.0, 1.0], [0.2, 0.5]).evidence()["decision"].violation == 0


@pytest.fixture
def histogram(filled):
    def made(edges, accuracy, known=1.0):
        return filled("histogram", 3, {"bins": len(accuracy)}, edges=edges, accuracy=accuracy, known=known)

    return made


def by_hand(z, edges, accuracy):
    rows = []
    for p in softmax(z, -1):
        first = p.argmax()
        a = accuracy[sum(p[first] > edge for edge in edges)]
        q = (1 - a) * p / (p.sum() - p[first])
        q[first] = a
        rows.append(q)
    return np.array(rows)


def test_the_winner_gets_the_accuracy_of_its_bin_and_the_rest_is_spread_in_proportion(histogram, voxels):
    edges, accuracy = [0.5, 0.8, 0.95], [0.4, 0.6, 0.7, 0.9]
    z = voxels(3)
    np.testing.assert_allclose(histogram(edges, accuracy)(z).exp(), by_hand(z.numpy(), edges, accuracy), rtol=1e-9)


def test_a_bin_without_calibration_voxels_keeps_what_comes(histogram, voxels):
    z = voxels(3)
    found = histogram([0.9], [0.3, 0.6], [0.0, 1.0])(z)
    low = z.softmax(1).amax(1) <= 0.9
    assert 0 < int(low.sum()) < len(z)
    torch.testing.assert_close(found[low], z.log_softmax(1)[low])
    np.testing.assert_allclose(found[~low].exp(), by_hand(z[~low].numpy(), [0.9], [0.3, 0.6]), rtol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_saturated_voxels_have_finite_logarithms_in_the_right_proportion(dtype, histogram):
    found = histogram([0.5], [0.4, 1 - 1e-9])(torch.tensor([[200.0, 0.0, 1.0]], dtype=dtype))[0]
    assert bool(torch.isfinite(found).all())
    assert float(found[2] - found[1]) == pytest.approx(1.0, abs=1e-4)
    assert float(torch.logsumexp(found[1:], 0)) == pytest.approx(np.log(1e-9), rel=1e-4)


def test_a_low_accuracy_gives_the_voxel_away(histogram):
    z = torch.tensor([[2.0, 1.9, -3.0]], dtype=torch.float64)
    assert int(histogram([0.9], [0.2, 0.9])(z).argmax()) == 1
