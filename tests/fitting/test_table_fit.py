import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from segcal import ArrayCases, fit, make_calibrator
from segcal.fitting.table_fit import join_lightest, monotone_pieces


def test_bins_have_equal_mass_and_their_accuracy(make_cases, make_data):
    logits, labels = make_data(4, 1500)
    fitted = fit("histogram", make_cases(4, 1500))
    p = np.exp(logits - logits.max(0))
    confidence, right = (p / p.sum(0)).max(0), logits.argmax(0) == labels
    order = np.argsort(confidence)
    edges = [confidence[order][int(np.ceil(k * 1500 / 15)) - 1] for k in range(1, 15)]
    np.testing.assert_allclose(fitted.calibrator.edges, edges, rtol=1e-12)
    for number in range(15):
        low = -1 if number == 0 else edges[number - 1]
        high = 2 if number == 14 else edges[number]
        inside = (confidence > low) & (confidence <= high)
        assert inside.sum() == 100
        assert float(fitted.calibrator.accuracy[number]) == pytest.approx(right[inside].mean())
    assert fitted.certificate.kkt_residual is None
    assert fitted.certificate.details == {"bins_filled": 15}


def test_one_confidence_for_all_fills_one_bin_and_leaves_the_others_alone():
    logits = np.zeros((2, 10, 3))
    logits[0] = 5.0
    labels = np.zeros((10, 3), int)
    labels[0, 0] = 1
    fitted = fit("histogram", ArrayCases(logits=[logits], labels=[labels]))
    assert fitted.certificate.details["bins_filled"] == 1
    assert float(fitted.calibrator(torch.tensor([[5.0, 0.0]])).exp()[0, 0]) == pytest.approx(29 / 30, rel=1e-5)
    torch.testing.assert_close(
        fitted.calibrator(torch.tensor([[9.0, 0.0]])), torch.tensor([[9.0, 0.0]]).log_softmax(1), rtol=1e-4, atol=1e-6
    )


def test_without_a_single_misprediction_confidence_stays_below_one():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(3, 30, 20))
    fitted = fit("histogram", ArrayCases(logits=[logits], labels=[logits.argmax(0)]))
    assert float(fitted.calibrator.accuracy.max()) == pytest.approx(1 - 0.5 / 40)
    assert np.isfinite(fitted.certificate.nll)


def pairs_of(logits, labels):
    p = np.exp(logits - logits.max(0))
    p /= p.sum(0)
    return p.reshape(-1), (labels == np.arange(len(logits))[:, None]).astype(float).reshape(-1)


@pytest.mark.parametrize("classes", [2, 5, 20])
def test_the_function_is_that_of_scikit_learn(classes, make_cases, make_data):
    regression = pytest.importorskip("sklearn.isotonic").IsotonicRegression(out_of_bounds="clip")
    logits, labels = make_data(classes, 600)
    regression.fit(*pairs_of(logits, labels))
    fitted = fit(make_calibrator("isotonic", classes, knots=5000), make_cases(classes, 600))
    grid = np.linspace(0, 1, 777)
    found = fitted.calibrator.function(torch.tensor(grid)).numpy()
    np.testing.assert_allclose(found, np.maximum(regression.predict(grid) + 1e-9 * grid, 1e-12), rtol=0, atol=1e-9)
    assert fitted.certificate.kkt_residual is None
    assert fitted.certificate.method == "isotonic"


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 6), st.booleans(), st.integers(1, 3)), min_size=1, max_size=20))
def test_pieces_rise_and_no_other_monotone_function_is_closer(rows):
    x, y, w = (np.array(column, dtype=float) for column in zip(*rows, strict=True))
    low, high, value, mass = monotone_pieces(x, y, w)
    assert (np.diff(value) > 0).all()
    assert (low <= high).all()
    assert (high[:-1] < low[1:]).all()
    assert mass.sum() == pytest.approx(w.sum())
    own = value[np.searchsorted(high, x)]
    best = (w * (own - y) ** 2).sum()
    for shift in (-0.05, 0.05):
        for cut in range(7):  # raise or lower the function on one side of a cut, and keep it monotone
            other = np.maximum.accumulate(own[np.argsort(x, kind="stable")] + shift * (np.sort(x) >= cut))
            assert (
                w[np.argsort(x, kind="stable")] * (other - y[np.argsort(x, kind="stable")]) ** 2
            ).sum() >= best - 1e-9


@settings(max_examples=40)
@given(st.lists(st.floats(0.1, 9), min_size=3, max_size=40), st.integers(2, 6))
def test_joined_pieces_keep_the_mean_and_the_order(mass, most):
    mass = np.array(mass)
    count = len(mass)
    value = np.linspace(0, 1, count)
    low, high = np.arange(count, dtype=float), np.arange(count) + 0.5
    edges, ends, joined = join_lightest(low.copy(), high.copy(), value.copy(), mass.copy(), most)
    assert len(joined) == min(count, most)
    assert (np.diff(joined) > 0).all()
    number = np.searchsorted(ends, low)
    for piece in range(len(joined)):
        inside = number == piece
        assert edges[piece] == low[inside][0]
        assert joined[piece] == pytest.approx((mass * value)[inside].sum() / mass[inside].sum())


def test_a_function_with_more_pieces_than_knots_is_shortened(make_cases):
    whole = fit(make_calibrator("isotonic", 3, knots=4000), make_cases(3, 5000))
    short = fit(make_calibrator("isotonic", 3, knots=16), make_cases(3, 5000))
    assert whole.certificate.details["pieces"] > 8 == short.certificate.details["pieces_kept"]
    grid = torch.linspace(0, 1, 400, dtype=torch.float64)
    gap = (whole.calibrator.function(grid) - short.calibrator.function(grid)).abs().mean()
    assert float(gap) < 0.05
    assert short.calibrator.evidence()["decision"].violation == 0
