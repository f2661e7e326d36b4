import math

import numpy as np
import pytest
import torch

from segcal.kernels.affine_temperature import reference, temperature_terms


def problem(count, classes=5, scale=3.0, dtype=torch.float32, seed=0):
    rng = np.random.default_rng(seed)
    logits = torch.as_tensor(scale * rng.normal(size=(classes, count))).to(dtype)
    target = torch.as_tensor(rng.integers(0, classes, count).astype(np.int32))
    return logits, target, torch.as_tensor(rng.random(count) + 0.5).to(dtype)


def one_by_one(logits, target, weight, beta):
    total = 0.0
    for v in range(len(target)):
        z = [beta * float(row[v]) for row in logits]
        top = max(z)
        total += weight[v] * (math.log(math.fsum(math.exp(s - top) for s in z)) + top - z[target[v]])
    return total


@pytest.mark.parametrize("beta", [1e-3, 0.3, 1.0, 7.0])
def test_all_forms_agree_with_a_plain_loop_and_its_differences(beta):
    arguments = problem(50, dtype=torch.float64)
    plain = [one_by_one(*(x.tolist() for x in arguments), beta + s) for s in (-1e-4, 0, 1e-4)]
    expected = (plain[1], (plain[2] - plain[0]) / 2e-4, (plain[2] - 2 * plain[1] + plain[0]) / 1e-8)
    for found in (temperature_terms(*arguments, beta), reference(*arguments, beta)):
        assert found[0] == pytest.approx(expected[0], rel=1e-12)
        assert found[1] == pytest.approx(expected[1], rel=1e-5, abs=1e-5)
        assert found[2] == pytest.approx(expected[2], rel=1e-3, abs=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("count", [1, 127, 128, 129, 4097, 9000])
@pytest.mark.parametrize("classes", [2, 20])
def test_the_fused_form_agrees_with_torch_at_every_tile_boundary(dtype, count, classes):
    arguments = problem(count, classes, dtype=dtype)
    assert temperature_terms(*arguments, 0.7) == pytest.approx(reference(*arguments, 0.7), rel=1e-11)


@pytest.mark.parametrize("beta", [1e-3, 1e3])
def test_logits_of_1e4_neither_overflow_nor_vanish(beta):
    arguments = problem(300, scale=1e4)
    found = temperature_terms(*arguments, beta)
    assert found == pytest.approx(reference(*arguments, beta), rel=1e-11, abs=1e-6)
    assert all(math.isfinite(x) for x in found)


def test_an_offset_changes_nothing():
    logits, target, weight = problem(300, dtype=torch.float64)
    shifted = temperature_terms(logits + 512, target, weight, 0.7)
    assert shifted == pytest.approx(temperature_terms(logits, target, weight, 0.7), rel=1e-10)


def test_the_number_of_threads_changes_not_one_bit():
    arguments = problem(40_000)
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            results.append(temperature_terms(*arguments, 0.7))
    finally:
        torch.set_num_threads(before)
    assert results[0] == results[1]
