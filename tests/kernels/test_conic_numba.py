import numpy as np
import pytest
import torch

from segcal.kernels import conic_numba, conic_torch
from segcal.kernels.conic_numba import hessian

HATS = [3, 2]


def draw(kinds, count=300, classes=4, nodes=5, seed=0):
    """Positions, labels, weights and rows: shared ones, and those of classes if asked."""
    rng = np.random.default_rng(seed)
    where = rng.uniform(0, nodes + 1, size=(classes, count))
    where[rng.integers(0, classes, count), np.arange(count)] = -1
    around = np.stack([rng.uniform(0, hats - 1, count) for hats in HATS])
    around[:, :5] = [[0.0, 1.0, 2.0, 0.5, 1.5], [0.0, 1.0, 0.0, 1.0, 0.5]]
    more = {"shared": 0, "class": classes, "pairs": classes**2}[kinds]
    rows = np.cumsum(rng.uniform(0, 0.3, size=(1 + sum(HATS) + more, nodes)), axis=1)
    labels = rng.integers(0, classes, count).astype(np.int32)
    x = np.concatenate([where, around])
    return [torch.from_numpy(each) for each in (x, labels, rng.uniform(0.5, 2, count), rows)]


def drops_by_hand(x, rows, classes, v):
    """How far each class drops below the winner, and the coefficient of every value of every row in it."""
    nodes, base = rows.shape[1], 1 + sum(HATS)
    design = np.zeros((classes, *rows.shape))
    winner = int(np.flatnonzero(x[:classes, v] < 0)[0])
    for k in range(classes):
        if k == winner:
            continue
        shares = {0: 1.0}
        own = {base + (winner * classes + k if len(rows) == base + classes**2 else k): 1.0} if len(rows) > base else {}
        start = 0
        for c, hats in enumerate(HATS):
            for h in range(hats):
                share = max(0.0, 1 - abs(x[classes + c, v] - h))
                shares[1 + start + h] = share
            start += hats
        node = min(int(x[k, v]), nodes - 2)
        rest = x[k, v] - node
        for row, share in (shares | own).items():
            design[k, row, node] += share * (1 - rest)
            design[k, row, node + 1] += share * rest
    return design


@pytest.mark.parametrize("kinds", ["shared", "class", "pairs"])
def test_values_gradients_and_hessians_are_those_of_the_written_out_design(kinds):
    classes = 4
    x, labels, weight, rows = draw(kinds)
    value, gradient = conic_numba.likelihood(x, labels, weight, rows, classes, HATS)
    found = hessian(x, weight, rows, classes, HATS)
    total, slope, bend = 0.0, np.zeros(rows.numel()), np.zeros((rows.numel(), rows.numel()))
    for v in range(x.shape[1]):
        design = drops_by_hand(x.numpy(), rows.numpy(), classes, v).reshape(classes, -1)
        scores = -design @ rows.numpy().reshape(-1)
        probs = np.exp(scores) / np.exp(scores).sum()
        y, w = int(labels[v]), float(weight[v])
        total -= w * np.log(probs[y])
        slope += w * (design[y] - probs @ design)
        bend += w * (design.T * probs) @ design - w * np.outer(probs @ design, probs @ design)
    np.testing.assert_allclose(value, total, rtol=1e-12)
    np.testing.assert_allclose(gradient.numpy().reshape(-1), slope, rtol=0, atol=1e-10)
    by_pieces = conic_torch.likelihood(x, labels, weight, rows, classes, HATS)
    np.testing.assert_allclose(by_pieces[0], total, rtol=1e-12)
    np.testing.assert_allclose(by_pieces[1].numpy().reshape(-1), slope, rtol=0, atol=1e-10)
    np.testing.assert_allclose(found.numpy(), bend, rtol=0, atol=2e-3 * np.abs(bend).max())
    torch.testing.assert_close(found, found.T, rtol=0, atol=0)


@pytest.mark.parametrize("kinds", ["class", "pairs"])
def test_rows_that_are_made_of_fewer_numbers_have_the_hessian_of_these(kinds):
    x, _, weight, rows = draw(kinds)
    spread = torch.from_numpy(np.random.default_rng(1).uniform(size=(5, 2)) * [[1, 0], [1, 1], [1, 1], [0, 1], [1, 1]])
    shared = 5 * (1 + sum(HATS))
    whole = hessian(x, weight, rows, 4, HATS)
    made = torch.block_diag(torch.eye(shared), *[spread] * (len(rows) - 1 - sum(HATS))).double()
    found = hessian(x, weight, rows, 4, HATS, spread)
    torch.testing.assert_close(found, made.T @ whole @ made, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(found, found.T, rtol=0, atol=0)


def test_sums_do_not_depend_on_the_number_of_threads():
    x, labels, weight, rows = draw("pairs", count=20_000)
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            results.append(
                (*conic_numba.likelihood(x, labels, weight, rows, 4, HATS), hessian(x, weight, rows, 4, HATS))
            )
    finally:
        torch.set_num_threads(before)
    assert results[0][0] == results[1][0]
    assert all(torch.equal(one, other) for one, other in zip(results[0][1:], results[1][1:], strict=True))
