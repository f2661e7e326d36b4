"""Recent calibrators of others against plain loops of their definitions."""

import itertools

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from paper import recent


@pytest.fixture(scope="module", params=[2, 3])
def voxels(request):
    rng = np.random.default_rng(request.param)
    logits = 4 * rng.normal(size=(907, request.param)) + np.arange(request.param)
    labels = (0.5 * logits + rng.gumbel(size=logits.shape)).argmax(1)
    return torch.tensor(logits, dtype=torch.float32), torch.from_numpy(labels)


def nll(found, labels):
    return float(-found[torch.arange(len(labels)), labels].double().mean())


def fitted(voxels):
    """Return every map by name; h-calibration trained for some of its epochs."""
    logits, labels = voxels
    short = {recent.h_calibration: {"epochs": 300}}
    every = [fit(logits, labels, **short.get(fit, {})) for fit in recent.recent(logits.shape[1])]
    return {name: found for maps in every for name, found in maps.items()}


def test_every_map_returns_log_probabilities_that_are_better_and_keeps_the_mask_where_it_promises_to(voxels):
    logits, labels = voxels
    plain = logits.log_softmax(1)
    right = (logits.argmax(1) == labels).float()
    every = fitted(voxels)
    two = {"affine (probmetrics)", "quadratic (probmetrics)"}
    assert set(every) == {
        "smart", "sms (probmetrics)", "h-calibration", "h-calibration, by NLL", "ts (torch-uncertainty)",
        *(two if logits.shape[1] == 2 else ()),
    }  # fmt: skip
    for name, mapped in every.items():
        found = mapped(logits)
        assert found.shape == logits.shape
        assert found.double().exp().sum(1) == pytest.approx(torch.ones(len(labels)).numpy(), abs=1e-5)
        if name in ("smart", "h-calibration"):  # they lower other errors
            errors = [float(recent.soft_binned_error(each.exp().amax(1), right)) for each in (found, plain)]
            assert errors[0] < errors[1]
        else:
            assert nll(found, labels) < nll(plain, labels)
        if name not in {"sms (probmetrics)", *two}:
            assert torch.equal(found.argmax(1), logits.argmax(1))


@pytest.mark.parametrize("degree", [1, 2])
def test_a_polynomial_of_log_odds_ends_where_logistic_regression_does(degree):
    from sklearn.linear_model import LogisticRegression

    rng = np.random.default_rng(degree)
    logits = 3 * rng.normal(size=(602, 2))
    odds = logits[:, 1] - logits[:, 0]
    labels = (rng.random(602) < 1 / (1 + np.exp(0.4 - 0.6 * odds - 0.05 * odds**2))).astype(int)
    features = np.stack([odds**power for power in range(degree + 1)], 1)
    model = LogisticRegression(C=np.inf, fit_intercept=False, tol=1e-10, max_iter=10_000).fit(features, labels)
    name = ("affine", "quadratic")[degree - 1] + " (probmetrics)"
    found = recent.logistic(torch.from_numpy(logits), torch.from_numpy(labels))[name](torch.from_numpy(logits))
    assert found.exp().numpy() == pytest.approx(model.predict_proba(features), abs=1e-5)


def test_a_curve_is_straight_between_its_knots_and_continuous_at_them():
    slopes = np.random.default_rng(3).normal(size=11)
    log_probs = torch.linspace(-99.9, 0, 1201, dtype=torch.float64)
    mapped, (start,) = recent.curve(10)
    knots = np.concatenate([[0], np.cumsum(10 * np.abs(slopes[:10]))])
    plain = -np.interp(-log_probs.numpy(), np.arange(0, 101, 10), knots)
    pairs = torch.stack([log_probs, torch.zeros_like(log_probs)], 1)
    found = mapped(pairs, [torch.from_numpy(slopes)])
    assert found[:, 0].numpy() == pytest.approx(1 / (1 + np.exp(-plain)), abs=1e-9)
    assert torch.equal(mapped(pairs, [start]), pairs.softmax(1))  # slopes of one change nothing


def test_a_mixture_of_temperatures_is_that_of_a_plain_loop():
    rng = np.random.default_rng(5)
    logits, scale, weight = rng.normal(size=(7, 3)), rng.normal(size=16), rng.normal(size=16)
    total = np.zeros((7, 3))
    for inverse, share in zip(np.abs(scale), np.abs(weight) / np.abs(weight).sum(), strict=True):
        each = np.exp(logits * inverse)
        total += share * each / each.sum(1, keepdims=True)
    mapped, _ = recent.mixture(16, torch.Generator())
    assert mapped(torch.from_numpy(logits), [torch.from_numpy(scale), torch.from_numpy(weight)]).numpy() == (
        pytest.approx(total)
    )


def test_the_debiased_error_is_that_of_drawing_again():
    rng = np.random.default_rng(6)
    confidence = rng.uniform(0.5, 1, 1205)
    right = rng.random(1205) < confidence**2
    order, edges = np.argsort(confidence), [round(1205 / 15 * k) for k in range(16)]
    parts = [order[a:b] for a, b in itertools.pairwise(edges)]
    means = [(confidence[own].mean(), right[own].mean(), len(own)) for own in parts]
    plain = sum(n / 1205 * abs(p - a) for p, a, n in means)
    again = np.mean([
        np.abs(rng.normal(a, np.sqrt(a * (1 - a) / n), 200_000) - p).mean() for p, a, n in means
    ])  # fmt: skip
    found = recent.debiased_error(torch.from_numpy(confidence), torch.from_numpy(right))
    assert found == pytest.approx(2 * plain - again, abs=2e-4)
    assert found < plain


def test_structured_matrix_scaling_ends_where_scipy_does():
    rng = np.random.default_rng(9)
    logits = 3 * rng.normal(size=(401, 3))
    labels = (0.6 * logits + rng.gumbel(size=logits.shape)).argmax(1)
    mapped = recent.sms(torch.from_numpy(logits), torch.from_numpy(labels))["sms (probmetrics)"]
    found = mapped(torch.from_numpy(logits)).numpy()

    def soft(z):
        z = np.exp(z - z.max(1, keepdims=True))
        return z / z.sum(1, keepdims=True)

    def loss(z):
        return -np.log(soft(z)[np.arange(401), labels]).mean()

    log_p = np.log(soft(logits))
    beta = minimize(lambda b: loss(b[0] * log_p), [1.0], method="Nelder-Mead", options={"xatol": 1e-10}).x[0]
    x = np.log((1 - 1 / 402) * soft(beta * log_p) + 1 / 402 / 3)

    def scaled(v):
        return x + x @ v[:9].reshape(3, 3).T + v[9:]

    def penalised(v):
        matrix, shift = v[:9].reshape(3, 3), v[9:]
        diagonal = (np.diag(matrix) ** 2).sum()
        rest = (matrix**2).sum() - diagonal
        return loss(scaled(v)) + 3 / 401 * ((shift**2).sum() + diagonal) + 6 / 401 * rest

    best = minimize(penalised, np.zeros(12), method="BFGS", options={"gtol": 1e-9}).x
    assert np.exp(found) == pytest.approx(soft(scaled(best)), abs=1e-5)


def test_the_soft_binned_error_is_that_of_a_plain_loop():
    rng = np.random.default_rng(2)
    confidence, right = rng.uniform(0.4, 1, 53), rng.random(53) < 0.7
    total = 0.0
    shares = np.array([[np.exp(-0.5 * ((p - (b + 0.5) / 15) / 0.05) ** 2) for b in range(15)] for p in confidence])
    shares /= shares.sum(1, keepdims=True)
    for b in range(15):
        mass = shares[:, b].sum()
        gap = sum(shares[i, b] * (confidence[i] - right[i]) for i in range(53)) / mass
        total += mass / 53 * np.sqrt(gap**2 + 1e-6)
    found = recent.soft_binned_error(torch.tensor(confidence).float(), torch.tensor(right).float())
    assert float(found) == pytest.approx(total, rel=1e-4)


def test_the_error_of_neighbours_is_that_of_a_plain_loop():
    rng = np.random.default_rng(4)
    probs, labels, window = rng.dirichlet(np.ones(3), 61), rng.integers(0, 3, 61), 8
    parts = []
    for left_out in range(3):
        pairs = sorted((probs[i, c], labels[i] == c) for i in range(61) if labels[i] != left_out for c in range(3))
        q = np.array([p for p, _ in pairs])
        off = [
            abs(sum(p - o for p, o in pairs[max(0, k - window // 2) : k + window // 2 + 1])) / (window + 1)
            for k in range(len(q))
        ]
        edges = recent.clusters(torch.from_numpy(q)).tolist()
        assert [edges[0], edges[-1]] == [0, len(q)]
        parts.append(np.mean([sum(off[a:b]) / (b - a + 1e-5) for a, b in itertools.pairwise(edges)]))
    found = recent.neighbour_error(torch.from_numpy(probs).float(), torch.from_numpy(labels), window)
    assert float(found) == pytest.approx(np.mean(parts), rel=1e-3)


def test_clusters_of_one_dimension_are_nearest_to_their_means():
    values = np.sort(np.random.default_rng(1).random(300))
    edges = recent.clusters(torch.from_numpy(values), 6, 200).tolist()
    means = [values[a:b].mean() for a, b in itertools.pairwise(edges)]
    nearest = np.abs(values[:, None] - means).argmin(1)
    assert nearest.tolist() == np.repeat(np.arange(6), np.diff(edges)).tolist()
