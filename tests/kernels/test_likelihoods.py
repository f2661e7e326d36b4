"""The likelihoods of a fit: the reference in torch against plain Python, and the loops against the reference."""

import math

import numpy as np
import pytest
import torch

from segcal.kernels import affine_numba, affine_torch, conic_numba, conic_torch
from segcal.kernels.affine_numba import temperature_terms

OUTPUTS = ["scores", "drops", "stacked_drops"]
HATS = [3, 2]


def affine(outputs, count=37, classes=4, scale=2.0, dtype=torch.float64, seed=0):
    """Features, labels, weights and theta; of drops none is negative."""
    rng = np.random.default_rng(seed)
    rows = classes if outputs == "scores" else classes - 1
    x, theta = scale * rng.normal(size=(rows, count)), rng.normal(size=(rows, rows + 1))
    if outputs != "scores":
        x, theta = np.abs(x), np.abs(theta)
    target = torch.as_tensor(rng.integers(0, classes, count).astype(np.int32))
    weight = torch.as_tensor(rng.random(count) + 0.5).to(dtype)
    return torch.as_tensor(x).to(dtype), target, weight, torch.as_tensor(theta), outputs


def log_loss(scores, label):
    top = max(scores)
    return math.log(math.fsum(math.exp(s - top) for s in scores)) + top - scores[label]


def one_by_one(features, target, weight, theta, outputs):
    """Sum w (log sum e^s - s_t) over voxels, in plain Python."""
    features, target, weight, theta = (x.tolist() for x in (features, target, weight, theta))
    total = 0.0
    for v in range(len(target)):
        linear = [sum(row[f] * features[f][v] for f in range(len(features))) + row[-1] for row in theta]
        scores = linear if outputs == "scores" else [0.0]
        for drop in linear if outputs != "scores" else ():
            scores.append((scores[-1] if outputs == "stacked_drops" else 0.0) - drop)
        total += weight[v] * log_loss(scores, target[v])
    return total


def assert_same(found, expected, atol=1e-10):
    assert found[0] == pytest.approx(expected[0], rel=1e-12)
    torch.testing.assert_close(found[1], expected[1], rtol=1e-10, atol=atol)


@pytest.mark.parametrize("outputs", OUTPUTS)
def test_sum_and_gradient_of_the_reference_are_those_of_a_plain_loop(outputs):
    x, target, weight, theta, _ = affine(outputs, dtype=torch.float32)
    value, gradient = affine_torch.likelihood(x, target, weight, theta, outputs)
    assert value == pytest.approx(one_by_one(x.double(), target, weight.double(), theta, outputs), rel=1e-12)
    for place in np.ndindex(*theta.shape):
        ends = []
        for step in (1e-6, -1e-6):
            moved = theta.clone()
            moved[place] += step
            ends.append(one_by_one(x.double(), target, weight.double(), moved, outputs))
        assert float(gradient[place]) == pytest.approx((ends[0] - ends[1]) / 2e-6, abs=1e-6)


@pytest.mark.parametrize("outputs", OUTPUTS)
def test_hessian_its_products_and_its_blocks_are_those_of_the_gradient(outputs):
    x, target, weight, theta, _ = affine(outputs)
    blocks = affine_torch.hessian_blocks(x, weight, theta, outputs)
    matrix = affine_torch.hessian(x, weight, theta, outputs)
    for number, (k, f) in enumerate(np.ndindex(*theta.shape)):
        direction = torch.zeros_like(theta)
        direction[k, f] = 1.0
        product = affine_torch.hessian_operator(x, weight, theta, outputs)(direction)
        ends = [affine_torch.likelihood(x, target, weight, theta + s * direction, outputs)[1] for s in (1e-6, -1e-6)]
        torch.testing.assert_close(product, (ends[0] - ends[1]) / 2e-6, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(blocks[k, f], product[k], rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(matrix[number], product.flatten(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("outputs", OUTPUTS)
def test_steps_add_up_to_the_whole(outputs, monkeypatch):
    arguments = affine(outputs, count=1500)
    x, _, weight, theta, _ = arguments
    whole, bend = affine_torch.likelihood(*arguments), affine_torch.hessian(x, weight, theta, outputs)
    monkeypatch.setattr(affine_torch, "STEP_VALUES", 1)  # 256 voxels a step
    monkeypatch.setattr(affine_torch, "HESSIAN_VALUES", 1)
    assert_same(affine_torch.likelihood(*arguments), whole)
    torch.testing.assert_close(affine_torch.hessian(x, weight, theta, outputs), bend, rtol=1e-12, atol=1e-10)


@pytest.mark.parametrize("outputs", OUTPUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("count", [1, 63, 64, 65, 5000])
def test_loops_agree_with_the_reference_at_every_tile_boundary(outputs, dtype, count):
    arguments = affine(outputs, count, 5, dtype=dtype)
    assert_same(affine_numba.likelihood(*arguments), affine_torch.likelihood(*arguments), 1e-10 * count)


@pytest.mark.parametrize("outputs", OUTPUTS)
@pytest.mark.parametrize(("classes", "scale"), [(2, 2.0), (41, 2.0), (5, 1e-30), (5, 1e4)])
def test_loops_agree_for_any_number_of_classes_and_tiny_and_huge_scores(outputs, classes, scale):
    arguments = affine(outputs, 700, classes, scale)
    expected = affine_torch.likelihood(*arguments)
    assert_same(affine_numba.likelihood(*arguments), expected, 1e-8 * max(1.0, 1e-2 * scale))


@pytest.mark.parametrize("kernel", [affine_numba, affine_torch])
def test_a_small_loss_beside_huge_scores_is_not_rounded_away(kernel):
    """All scores near 1e7 and the label slightly ahead: the loss is log(1 + e^-1), whatever the common part."""
    x = torch.full((2, 64), 1e7, dtype=torch.float64)
    x[0] += 1
    theta = torch.tensor([[1.0, 0, 0], [0, 1, 0]], dtype=torch.float64)
    ones = torch.ones(64, dtype=torch.float64)
    value, _ = kernel.likelihood(x, torch.zeros(64, dtype=torch.int32), ones, theta, "scores")
    assert value / 64 == pytest.approx(np.log1p(np.exp(-1.0)), rel=1e-12)


def tempered(count, classes=5, scale=3.0, dtype=torch.float32):
    return affine("scores", count, classes, scale, dtype)[:3]


@pytest.mark.parametrize("beta", [1e-3, 7.0])
def test_temperature_terms_are_those_of_a_plain_loop_and_its_differences(beta):
    logits, target, weight = tempered(50, dtype=torch.float64)
    plain = []
    for factor in (beta - 1e-4, beta, beta + 1e-4):
        rows = zip((factor * logits).T.tolist(), target.tolist(), weight.tolist(), strict=True)
        plain.append(sum(w * log_loss(z, y) for z, y, w in rows))
    expected = (plain[1], (plain[2] - plain[0]) / 2e-4, (plain[2] - 2 * plain[1] + plain[0]) / 1e-8)
    for terms in (temperature_terms, affine_torch.temperature_terms):
        found = terms(logits, target, weight, beta)
        assert found[0] == pytest.approx(expected[0], rel=1e-12)
        assert found[1] == pytest.approx(expected[1], rel=1e-5, abs=1e-5)
        assert found[2] == pytest.approx(expected[2], rel=1e-3, abs=1e-3)


@pytest.mark.parametrize("count", [1, 63, 64, 65, 9000])
@pytest.mark.parametrize(("classes", "dtype"), [(2, torch.float32), (20, torch.float64)])
def test_fused_temperature_terms_agree_with_torch_at_every_tile_boundary(count, classes, dtype):
    arguments = (*tempered(count, classes, dtype=dtype), 0.7)
    assert temperature_terms(*arguments) == pytest.approx(affine_torch.temperature_terms(*arguments), rel=1e-11)


def test_temperature_terms_neither_overflow_nor_vanish_and_do_not_see_an_offset():
    for beta in (1e-3, 1e3):
        arguments = (*tempered(300, scale=1e4), beta)
        found = temperature_terms(*arguments)
        assert found == pytest.approx(affine_torch.temperature_terms(*arguments), rel=1e-11, abs=1e-6)
        assert all(math.isfinite(x) for x in found)
    logits, target, weight = tempered(300, dtype=torch.float64)
    expected = temperature_terms(logits, target, weight, 0.7)
    assert temperature_terms(logits + 512, target, weight, 0.7) == pytest.approx(expected, rel=1e-10)


def curves(kinds, count=100, classes=4, nodes=5):
    """Positions, labels, weights and rows: shared ones, and those of classes if asked."""
    rng = np.random.default_rng(0)
    where = rng.uniform(0, nodes + 1, size=(classes, count))
    where[rng.integers(0, classes, count), np.arange(count)] = -1
    around = np.stack([rng.uniform(0, hats - 1, count) for hats in HATS])
    around[:, :5] = [[0.0, 1.0, 2.0, 0.5, 1.5], [0.0, 1.0, 0.0, 1.0, 0.5]]
    more = {"shared": 0, "class": classes, "pairs": classes**2}[kinds]
    rows = np.cumsum(rng.uniform(0, 0.3, size=(1 + sum(HATS) + more, nodes)), axis=1)
    labels = rng.integers(0, classes, count).astype(np.int32)
    x = np.concatenate([where, around])
    return [torch.from_numpy(each) for each in (x, labels, rng.uniform(0.5, 2, count), rows)]


def design_by_hand(x, rows, classes, v):
    """The coefficient of every value of every row in the drop of each class below the winner."""
    nodes, base = rows.shape[1], 1 + sum(HATS)
    design = np.zeros((classes, *rows.shape))
    winner = int(np.flatnonzero(x[:classes, v] < 0)[0])
    for k in range(classes):
        if k == winner:
            continue
        own = {base + (winner * classes + k if len(rows) == base + classes**2 else k): 1.0} if len(rows) > base else {}
        shares, start = {0: 1.0} | own, 1
        for c, hats in enumerate(HATS):
            shares |= {start + h: max(0.0, 1 - abs(x[classes + c, v] - h)) for h in range(hats)}
            start += hats
        node = min(int(x[k, v]), nodes - 2)
        for row, share in shares.items():
            design[k, row, node] += share * (1 - (x[k, v] - node))
            design[k, row, node + 1] += share * (x[k, v] - node)
    return design.reshape(classes, -1)


@pytest.mark.parametrize("kinds", ["shared", "class", "pairs"])
def test_curves_have_the_values_gradients_and_hessians_of_the_written_out_design(kinds):
    classes = 4
    x, labels, weight, rows = curves(kinds)
    total, slope, bend = 0.0, np.zeros(rows.numel()), np.zeros((rows.numel(), rows.numel()))
    for v in range(x.shape[1]):
        design = design_by_hand(x.numpy(), rows.numpy(), classes, v)
        scores = -design @ rows.numpy().reshape(-1)
        probs = np.exp(scores) / np.exp(scores).sum()
        y, w = int(labels[v]), float(weight[v])
        total -= w * np.log(probs[y])
        slope += w * (design[y] - probs @ design)
        bend += w * (design.T * probs) @ design - w * np.outer(probs @ design, probs @ design)
    for kernel in (conic_numba, conic_torch):
        value, gradient = kernel.likelihood(x, labels, weight, rows, classes, HATS)
        np.testing.assert_allclose(value, total, rtol=1e-12)
        np.testing.assert_allclose(gradient.numpy().reshape(-1), slope, rtol=0, atol=1e-10)
    found = conic_numba.hessian(x, weight, rows, classes, HATS)
    np.testing.assert_allclose(found.numpy(), bend, rtol=0, atol=2e-3 * np.abs(bend).max())
    assert torch.equal(found, found.T)


@pytest.mark.parametrize("kinds", ["class", "pairs"])
def test_rows_that_are_made_of_fewer_numbers_have_the_hessian_of_these(kinds):
    x, _, weight, rows = curves(kinds)
    spread = torch.from_numpy(np.random.default_rng(1).uniform(size=(5, 2)) * [[1, 0], [1, 1], [1, 1], [0, 1], [1, 1]])
    whole = conic_numba.hessian(x, weight, rows, 4, HATS)
    shared = 1 + sum(HATS)
    made = torch.block_diag(torch.eye(5 * shared), *[spread] * (len(rows) - shared)).double()
    found = conic_numba.hessian(x, weight, rows, 4, HATS, spread)
    torch.testing.assert_close(found, made.T @ whole @ made, rtol=1e-10, atol=1e-10)
    assert torch.equal(found, found.T)


@pytest.mark.parametrize("outputs", OUTPUTS)
def test_the_number_of_threads_changes_not_one_bit(outputs, by_threads):
    given, (x, labels, weight, rows) = affine(outputs, 40_000, 5, dtype=torch.float32), curves("pairs", count=20_000)
    first, *others = by_threads(
        lambda: (
            *affine_numba.likelihood(*given),
            temperature_terms(*given[:3], 0.7) if outputs == "scores" else None,
            *conic_numba.likelihood(x, labels, weight, rows, 4, HATS),
            conic_numba.hessian(x, weight, rows, 4, HATS),
        )
    )
    for other in others:
        for one, two in zip(first, other, strict=True):
            assert torch.equal(one, two) if isinstance(one, torch.Tensor) else one == two
