"""The fused kernel against the reference in torch, which is tested against plain Python."""

import numpy as np
import pytest
import torch

from segcal.kernels import affine_numba, affine_torch

OUTPUTS = ["scores", "drops", "stacked_drops"]


def problem(outputs, count, classes=5, scale=2.0, dtype=torch.float32, seed=0):
    rng = np.random.default_rng(seed)
    rows = classes if outputs == "scores" else classes - 1
    x = scale * rng.normal(size=(rows, count))
    theta = rng.normal(size=(rows, rows + 1))
    if outputs != "scores":
        x, theta = np.abs(x), np.abs(theta)
    target = torch.as_tensor(rng.integers(0, classes, count).astype(np.int32))
    weight = torch.as_tensor(rng.random(count) + 0.5).to(dtype)
    return torch.as_tensor(x).to(dtype), target, weight, torch.as_tensor(theta), outputs


@pytest.mark.parametrize("outputs", OUTPUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("count", [1, 63, 64, 65, 2047, 2049, 5000])
def test_it_agrees_with_the_reference_at_every_tile_boundary(outputs, dtype, count):
    arguments = problem(outputs, count, dtype=dtype)
    value, gradient = affine_numba.likelihood(*arguments)
    expected, expected_gradient = affine_torch.likelihood(*arguments)
    assert value == pytest.approx(expected, rel=1e-12)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-10, atol=1e-10 * count)


@pytest.mark.parametrize("outputs", OUTPUTS)
@pytest.mark.parametrize("classes", [2, 3, 20, 41])
def test_it_agrees_for_any_number_of_classes(outputs, classes):
    arguments = problem(outputs, 700, classes)
    value, gradient = affine_numba.likelihood(*arguments)
    expected, expected_gradient = affine_torch.likelihood(*arguments)
    assert value == pytest.approx(expected, rel=1e-12)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-10, atol=1e-8)


@pytest.mark.parametrize("outputs", OUTPUTS)
@pytest.mark.parametrize("scale", [1e-30, 1e4])
def test_tiny_and_huge_scores_stay_exact(outputs, scale):
    arguments = problem(outputs, 500, scale=scale, dtype=torch.float64)
    value, gradient = affine_numba.likelihood(*arguments)
    expected, expected_gradient = affine_torch.likelihood(*arguments)
    assert value == pytest.approx(expected, rel=1e-12)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-10, atol=1e-10 * max(1.0, scale))


@pytest.mark.parametrize("kernel", [affine_numba, affine_torch])
def test_a_small_loss_beside_huge_scores_is_not_rounded_away(kernel):
    """All scores near 1e7 and the label slightly ahead: the loss is log(1 + e^-1), whatever the common part."""
    x = torch.full((2, 64), 1e7, dtype=torch.float64)
    x[0] += 1
    theta = torch.tensor([[1.0, 0, 0], [0, 1, 0]], dtype=torch.float64)
    ones = torch.ones(64, dtype=torch.float64)
    value, _ = kernel.likelihood(x, torch.zeros(64, dtype=torch.int32), ones, theta, "scores")
    assert value / 64 == pytest.approx(np.log1p(np.exp(-1.0)), rel=1e-12)


@pytest.mark.parametrize("outputs", OUTPUTS)
def test_weightless_voxels_do_not_count(outputs):
    x, target, weight, theta, _ = problem(outputs, 300)
    weight[100:] = 0
    value, gradient = affine_numba.likelihood(x, target, weight, theta, outputs)
    expected, expected_gradient = affine_numba.likelihood(
        x[:, :100].contiguous(), target[:100], weight[:100], theta, outputs
    )
    assert value == pytest.approx(expected, rel=1e-12)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("outputs", OUTPUTS)
def test_the_number_of_threads_changes_not_one_bit(outputs):
    arguments = problem(outputs, 40_000)
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            results.append(affine_numba.likelihood(*arguments))
    finally:
        torch.set_num_threads(before)
    assert results[0][0] == results[1][0]
    assert torch.equal(results[0][1], results[1][1])
