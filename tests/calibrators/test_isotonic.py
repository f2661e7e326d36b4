import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from segcal import make_calibrator
from segcal.errors import InputError


def made(points, values, classes=3, knots=8):
    """A calibrator with this function; the last point is repeated."""
    calibrator = make_calibrator("isotonic", classes, knots=knots)
    room = knots - len(points)
    calibrator.points.copy_(torch.tensor([*points, *[points[-1]] * room], dtype=torch.float64))
    calibrator.values.copy_(torch.tensor([*values, *[values[-1]] * room], dtype=torch.float64))
    calibrator.used.fill_(1.0)
    return calibrator


def softmax(z):
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def test_every_class_goes_through_the_same_function(voxels):
    points, values = [0.0, 0.2, 0.5, 0.9], [0.0, 0.1, 0.1, 0.8]
    p = softmax(voxels(3).numpy())
    q = np.maximum(np.interp(p, points, values) + 1e-9 * p, 1e-12)
    np.testing.assert_allclose(made(points, values)(voxels(3)).exp(), q / q.sum(-1, keepdims=True), rtol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_winner_stays_visible_where_the_function_is_flat(dtype, voxels):
    logits = voxels(3).to(dtype)
    assert torch.equal(made([0.0, 1.0], [0.3, 0.3])(logits).argmax(1), logits.argmax(1))


def test_zero_is_floored_and_its_logarithm_is_finite():
    found = made([0.0, 0.9, 1.0], [0.0, 0.0, 1.0])(torch.tensor([[9.0, 0.0, -100.0]], dtype=torch.float64))
    assert float(found[0, 2]) == pytest.approx(np.log(1e-12), abs=1e-2)


@settings(max_examples=60)
@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=4),
    st.lists(st.floats(-40, 40, width=32), min_size=5, max_size=5),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_no_function_changes_the_order_of_two_classes(steps, logits, dtype):
    values = np.cumsum([0.0, *steps]).tolist()
    calibrator = made(np.linspace(0, 1, len(values)).tolist(), values, classes=5)
    z = torch.tensor([logits], dtype=dtype)
    scores = calibrator.scores(z)[0]
    ordered = scores[z[0].argsort(descending=True, stable=True)]
    assert bool((ordered[1:] <= ordered[:-1]).all())


def test_a_function_that_falls_is_seen():
    assert made([0.0, 1.0], [0.5, 0.2]).evidence()["decision"].violation == pytest.approx(0.3)
    assert made([0.0, 1.0], [0.2, 0.5]).evidence()["decision"].violation == 0


@pytest.mark.parametrize("knots", [3, 2.5, True])
def test_too_few_knots_are_refused(knots):
    with pytest.raises(InputError, match=f"knots is {knots}, but a count of at least 4 is needed"):
        make_calibrator("isotonic", 3, knots=knots)
