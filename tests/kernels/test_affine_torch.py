"""The reference kernel against plain Python and against numerical differentiation."""

import math

import numpy as np
import pytest
import torch

from segcal.kernels import affine_torch

OUTPUTS = ["scores", "drops", "stacked_drops"]


def one_by_one(features, target, weight, theta, outputs):
    """Sum w (log sum e^s - s_t) over voxels, in plain Python."""
    total = 0.0
    for v in range(len(target)):
        linear = [
            sum(theta[k][f] * features[f][v] for f in range(len(features))) + theta[k][-1] for k in range(len(theta))
        ]
        scores = linear
        if outputs == "drops":
            scores = [0.0] + [-d for d in linear]
        if outputs == "stacked_drops":
            scores = [0.0]
            for d in linear:
                scores.append(scores[-1] - d)
        top = max(scores)
        total += weight[v] * (math.log(math.fsum(math.exp(s - top) for s in scores)) + top - scores[target[v]])
    return total


def problem(outputs, count=37, seed=0, dtype=torch.float64):
    rng = np.random.default_rng(seed)
    rows, features = (4, 4) if outputs == "scores" else (3, 3)
    classes = rows if outputs == "scores" else rows + 1
    x = rng.normal(size=(features, count)) * 2
    if outputs != "scores":
        x = np.abs(x)
    theta = rng.normal(size=(rows, features + 1)) if outputs == "scores" else rng.random((rows, features + 1))
    target = torch.as_tensor(rng.integers(0, classes, count).astype(np.int32))
    return (
        torch.as_tensor(x).to(dtype),
        target,
        torch.as_tensor(rng.random(count) + 0.5).to(dtype),
        torch.as_tensor(theta),
        outputs,
    )


@pytest.mark.parametrize("outputs", OUTPUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_sum_is_that_of_a_plain_loop(outputs, dtype):
    arguments = problem(outputs, dtype=dtype)
    value, _ = affine_torch.likelihood(*arguments)
    plain = one_by_one(*(x.double().tolist() if x.is_floating_point() else x.tolist() for x in arguments[:4]), outputs)
    assert value == pytest.approx(plain, rel=1e-12)


@pytest.mark.parametrize("outputs", OUTPUTS)
def test_the_gradient_is_that_of_the_sum(outputs):
    x, target, weight, theta, _ = problem(outputs)
    _, gradient = affine_torch.likelihood(x, target, weight, theta, outputs)
    for k in range(theta.shape[0]):
        for f in range(theta.shape[1]):
            step = torch.zeros_like(theta)
            step[k, f] = 1e-6
            ends = [
                one_by_one(x.tolist(), target, weight.tolist(), (theta + s * step).tolist(), outputs) for s in (1, -1)
            ]
            assert float(gradient[k, f]) == pytest.approx((ends[0] - ends[1]) / 2e-6, abs=1e-6)


@pytest.mark.parametrize("outputs", OUTPUTS)
def test_hessian_products_and_blocks_are_those_of_the_gradient(outputs):
    x, target, weight, theta, _ = problem(outputs)
    blocks = affine_torch.hessian_blocks(x, weight, theta, outputs)
    for k in range(theta.shape[0]):
        for f in range(theta.shape[1]):
            direction = torch.zeros_like(theta)
            direction[k, f] = 1.0
            product = affine_torch.hessian_operator(x, weight, theta, outputs)(direction)
            ends = [
                affine_torch.likelihood(x, target, weight, theta + s * direction, outputs)[1] for s in (1e-6, -1e-6)
            ]
            torch.testing.assert_close(product, (ends[0] - ends[1]) / 2e-6, rtol=1e-6, atol=1e-6)
            torch.testing.assert_close(blocks[k, f], product[k], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("outputs", OUTPUTS)
def test_steps_add_up_to_the_whole(outputs, monkeypatch):
    arguments = problem(outputs, count=1500)
    whole = affine_torch.likelihood(*arguments)
    monkeypatch.setattr(affine_torch, "STEP_VALUES", 1)  # 256 voxels a step
    parts = affine_torch.likelihood(*arguments)
    assert parts[0] == pytest.approx(whole[0], rel=1e-13)
    torch.testing.assert_close(parts[1], whole[1], rtol=1e-11, atol=1e-11)


def test_probabilities_of_drops_leave_out_the_winner_and_add_up_from_the_end():
    x, _, _, theta, _ = problem("drops")
    probs = affine_torch.probabilities(x, theta, "drops")
    drops = theta[:, :-1] @ x + theta[:, -1:]
    full = torch.softmax(torch.cat([torch.zeros_like(drops[:1]), -drops]), 0)
    torch.testing.assert_close(probs, full[1:])
    stacked = affine_torch.probabilities(x, theta, "stacked_drops")
    full = torch.softmax(torch.cat([torch.zeros_like(drops[:1]), -drops.cumsum(0)]), 0)
    torch.testing.assert_close(stacked, torch.stack([full[1:].sum(0), full[2:].sum(0), full[3]]))


@pytest.mark.parametrize("outputs", ["scores", "drops", "stacked_drops"])
def test_the_hessian_in_steps_is_the_hessian_at_once(outputs, monkeypatch):
    rng = np.random.default_rng(0)
    x = torch.as_tensor(np.abs(rng.normal(size=(3, 1000))))
    weight = torch.as_tensor(rng.random(1000))
    theta = torch.as_tensor(np.abs(rng.normal(size=(3, 4))))
    whole = affine_torch.hessian(x, weight, theta, outputs)
    monkeypatch.setattr(affine_torch, "HESSIAN_VALUES", 1)  # 256 voxels a step
    torch.testing.assert_close(affine_torch.hessian(x, weight, theta, outputs), whole, rtol=1e-12, atol=1e-10)
