import numpy as np
import pytest
import torch

from segcal.fitting.curvature import DenseCurvature


def positive(size, rank, seed=0):
    root = np.random.default_rng(seed).normal(size=(size, rank))
    return torch.as_tensor(root @ root.T)


def test_a_matrix_is_solved_with_in_the_free_components_only():
    matrix = positive(6, 6)
    right = torch.arange(1.0, 7.0, dtype=torch.float64)
    free = torch.tensor([True, False, True, True, False, True])
    found = DenseCurvature(matrix).solve(right, free)
    assert found[~free].tolist() == [0, 0]
    torch.testing.assert_close((matrix @ found)[free], right[free], rtol=1e-6, atol=1e-6)


def test_a_singular_matrix_gives_a_finite_step_that_solves_where_it_can():
    matrix = positive(8, 3)
    right = matrix @ torch.ones(8, dtype=torch.float64)
    found = DenseCurvature(matrix).solve(right, torch.ones(8, dtype=torch.bool))
    assert bool(torch.isfinite(found).all())
    torch.testing.assert_close(matrix @ found, right, rtol=1e-2, atol=1e-2 * float(right.norm()))


def test_zero_curvature_gives_a_step_downhill():
    curvature = DenseCurvature(torch.zeros(3, 3, dtype=torch.float64))
    step = -curvature.solve(torch.tensor([1.0, -2.0, 0.0], dtype=torch.float64), torch.ones(3, dtype=torch.bool))
    assert bool(torch.isfinite(step).all())
    assert step[0] < 0 < step[1]


def test_damping_is_small_beside_every_entry_of_the_diagonal():
    """Features of 1e4 and a bias differ by 1e8 in curvature; the bias must still be solved for exactly."""
    matrix = torch.diag(torch.tensor([1e9, 1e-4], dtype=torch.float64))
    found = DenseCurvature(matrix).solve(
        torch.tensor([1e9, 1e-4], dtype=torch.float64), torch.ones(2, dtype=torch.bool)
    )
    assert found.tolist() == pytest.approx([1.0, 1.0], rel=1e-6)


def test_a_matrix_that_rounding_made_indefinite_is_damped_until_it_is_not():
    matrix = positive(5, 2) - 1e-9 * torch.eye(5, dtype=torch.float64)
    found = DenseCurvature(matrix).solve(torch.ones(5, dtype=torch.float64), torch.ones(5, dtype=torch.bool))
    assert bool(torch.isfinite(found).all())
