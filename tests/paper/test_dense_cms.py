r"""CMS_ap and CMS_op against the paper's dense form: :math:`W = G^{-1} W' G`, applied to permuted logits."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from segcal import make_calibrator

NAMES = {"argmax": "cms_ap", "order": "cms_op"}


def gap_matrix(classes, preserves):
    """G of Eq. 12 and its counterpart for the order."""
    G = -np.eye(classes)
    G[0, 0] = 1
    for k in range(1, classes):
        G[k, 0 if preserves == "argmax" else k - 1] = 1
    return G


def dense_parts(A, first_row, b1, drops, preserves):
    """Return W and b of one expert in canonical order."""
    classes = len(first_row)
    G = gap_matrix(classes, preserves)
    inner = np.zeros((classes, classes))
    inner[0], inner[1:, 1:] = first_row, A
    W = np.linalg.inv(G) @ inner @ G
    b = np.full(classes, b1)
    for k in range(1, classes):
        b[k] = (b1 if preserves == "argmax" else b[k - 1]) - drops[k - 1]
    return W, b


def dense_log_probs(z, experts, preserves):
    """One voxel, as the paper writes it."""
    winner = int(np.argmax(z))
    if preserves == "argmax":
        order = np.arange(len(z))
        order[0], order[winner] = winner, 0
    else:
        order = np.argsort(-z, kind="stable")
    W, b = experts[winner]
    h = W @ z[order] + b
    out = np.empty_like(z)
    out[order] = h - np.log(np.exp(h - h.max()).sum()) - h.max()
    return out


def dense_penalty(experts, lam, mu):
    total = 0.0
    for W, b in experts:
        classes = len(b)
        off = W - np.diag(np.diag(W))
        total += lam * (off**2).sum() / (classes * (classes - 1)) + mu * (b**2).sum() / classes
    return total / len(experts)


@torch.no_grad()
def filled(classes, preserves, seed):
    rng = np.random.default_rng(seed)
    calibrator = make_calibrator(NAMES[preserves], classes)
    A = np.abs(rng.normal(size=(classes, classes - 1, classes - 1)))
    drops = np.abs(rng.normal(size=(classes, classes - 1)))
    gauge = rng.normal(size=(classes, classes + 1))
    for parameter, value in ((calibrator.weight, A), (calibrator.bias, drops), (calibrator.gauge, gauge)):
        parameter.copy_(torch.as_tensor(value))
    experts = [dense_parts(A[i], gauge[i, :-1], gauge[i, -1], drops[i], preserves) for i in range(classes)]
    return calibrator, experts


@pytest.mark.parametrize(
    ("preserves", "matrix", "bias", "scores", "probabilities"),
    [
        (
            "argmax",
            [[0.9, -0.3, 0.4], [-0.3, 0.7, 0.6], [-1.6, 0.2, 2.4]],
            (0, -0.1, -0.05),
            (0.95, -0.25, -5.35),
            (0.767442, 0.231149, 0.001409),
        ),
        (
            "order",
            [[1.3, -0.7, 0.4], [0.3, 0.1, 0.6], [-0.2, -1.4, 2.6]],
            (0, -0.1, -0.3),
            (1.15, 0.05, -5.4),
            (0.749456, 0.249472, 0.001072),
        ),
    ],
)
def test_the_worked_example(preserves, matrix, bias, scores, probabilities):
    z = np.array([2.0, 1.5, -1.0])
    A = np.array([[1, 0.2], [0.5, 2]])
    drops = [0.1, 0.05] if preserves == "argmax" else [0.1, 0.2]
    W, b = dense_parts(A, np.array([1, 0.3, -0.4]), 0.0, drops, preserves)
    np.testing.assert_allclose(W, matrix, atol=1e-12)
    np.testing.assert_allclose(W.sum(1), 1, atol=1e-12)
    np.testing.assert_allclose(b, bias, atol=1e-12)
    np.testing.assert_allclose(W @ z + b, scores, atol=1e-12)
    calibrator = make_calibrator(NAMES[preserves], 3)
    with torch.no_grad():
        calibrator.weight[0] = torch.as_tensor(A)
        calibrator.bias[0] = torch.as_tensor(drops)
        found = calibrator(torch.tensor(z)[None]).exp()[0]
    np.testing.assert_allclose(found, probabilities, atol=1e-6)


@settings(max_examples=40)
@given(
    seed=st.integers(0, 10**6), classes=st.sampled_from([2, 3, 4, 7]), preserves=st.sampled_from(["argmax", "order"])
)
def test_gaps_give_what_the_dense_matrices_give(seed, classes, preserves):
    calibrator, experts = filled(classes, preserves, seed)
    logits = 3 * np.random.default_rng(seed + 1).normal(size=(30, classes))
    with torch.no_grad():
        found = calibrator(torch.as_tensor(logits)).numpy()
    expected = [dense_log_probs(z, experts, preserves) for z in logits]
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-9)


@settings(max_examples=40)
@given(
    seed=st.integers(0, 10**6), classes=st.sampled_from([2, 3, 4, 7]), preserves=st.sampled_from(["argmax", "order"])
)
def test_the_penalty_is_eq_15_of_the_dense_matrices_averaged_over_experts(seed, classes, preserves):
    calibrator, experts = filled(classes, preserves, seed)
    with torch.no_grad():
        found = float(calibrator.penalty(0.3, 0.07))
    assert found == pytest.approx(dense_penalty(experts, 0.3, 0.07), rel=1e-10)


@pytest.mark.parametrize("preserves", ["argmax", "order"])
@pytest.mark.parametrize("temperature", [0.3, 1.0, 4.0])
def test_temperature_scaling_costs_nothing(preserves, temperature):
    calibrator = make_calibrator(NAMES[preserves], 4)
    with torch.no_grad():
        calibrator.weight.div_(temperature)
        calibrator.gauge.div_(temperature)
        assert float(calibrator.penalty(1.0, 1.0)) == pytest.approx(0, abs=1e-28)


def test_the_dense_form_reverses_near_ties_in_float32_and_gaps_do_not():
    """Why the gaps: three leaders within 1e-6 of each other, the same parameters, both forms in float32."""
    calibrator, experts = filled(3, "argmax", 3)
    rng = np.random.default_rng(0)
    z = (rng.normal(size=(5000, 1)) * 5 + rng.integers(0, 4, (5000, 3)) * 1e-7).astype(np.float32)
    winner = z.argmax(1)
    with torch.no_grad():
        own = calibrator.scores(torch.tensor(z)).numpy()
    assert int((own.max(1) > own[np.arange(5000), winner]).sum()) == 0
    lost = 0
    for voxel, i in zip(z, winner, strict=True):
        order = np.arange(3)
        order[0], order[i] = i, 0
        W, _ = experts[i]
        h = W.astype(np.float32) @ voxel[order]
        lost += bool(h.max() > h[0])
    assert lost > 100
