import numpy as np
import pytest
import torch

from segcal import ArrayCases, fit
from segcal.fitting.histogram import equal_mass_edges


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


def test_weights_move_the_edges():
    found = equal_mass_edges(np.array([0.1, 0.2, 0.3, 0.4]), np.array([1.0, 1.0, 1.0, 3.0]), 3)
    assert found.tolist() == [0.2, 0.4]


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
