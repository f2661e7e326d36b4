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


def test_nothing_happens_to_the_logits_of_the_identity():
    logits = torch.randn(4, 3, 7)
    calibrator = make_calibrator("identity", 3)
    assert torch.equal(calibrator.scores(logits), logits - logits.amax(1, keepdim=True))
    torch.testing.assert_close(calibrator(logits), torch.log_softmax(logits, 1), rtol=1e-6, atol=1e-6)


def test_logits_are_divided_by_the_temperature(filled, voxels):
    found = filled("ts", 4, inverse_temperature=1 / 2.5)(voxels(4)).exp()
    np.testing.assert_allclose(found, softmax(voxels(4).numpy() / 2.5, -1), rtol=1e-12)


def test_near_ties_survive_a_large_offset_and_a_small_scale(filled):
    """Multiplying first would round classes that are 1e-4 apart at 1e3 to other distances."""
    logits = torch.tensor([[1000.0, 1000.0001, 999.0]])
    scores = filled("ts", 3, inverse_temperature=1e-3).scores(logits)
    gap = float(logits[0, 1] - logits[0, 0])
    assert gap > 0
    np.testing.assert_allclose(float(scores[0, 1] - scores[0, 0]), gap * 1e-3, rtol=1e-5)


@pytest.mark.parametrize(
    "weights", [(0.6, 0.3, 0.1), (1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0), (0.5, 0.0, 0.5), (6.0, 3.0, 1.0)]
)
def test_ets_is_the_mixture_of_tempered_original_and_uniform(weights, filled, voxels):
    """Only the ratios of the weights count."""
    z, (first, second, third) = voxels(4).numpy(), np.array(weights) / sum(weights)
    found = filled("ets", 4, inverse_temperature=0.4, mixture=weights)(voxels(4)).exp()
    np.testing.assert_allclose(found, first * softmax(0.4 * z, -1) + second * softmax(z, -1) + third / 4, rtol=1e-10)


def test_probabilities_that_underflow_keep_their_logarithm(filled):
    found = filled("ets", 2, inverse_temperature=2.0, mixture=(0.5, 0.5, 0.0))(torch.tensor([[0.0, -300.0]]))
    assert found[0].tolist() == pytest.approx([0.0, np.log(0.5) - 300], rel=1e-5)


def test_uniform_mass_makes_all_classes_equal_and_reverses_none(filled):
    scores = filled("ets", 3, mixture=(0.0, 0.0, 1.0)).scores(torch.tensor([[1.0, 3.0, 2.0]]))
    assert len(scores.unique()) == 1
