"""The reference in tensor operations against the fused pass, which is proved on its own."""

from dataclasses import fields

import numpy as np
import pytest
import torch

from segcal.errors import InputError
from segcal.kernels import reliability_numba, reliability_torch
from segcal.kernels.raw_tables import Layout


@pytest.mark.parametrize("num_classes", [2, 3, 7])
@pytest.mark.parametrize("chunk", [100, 1 << 18])
def test_both_implementations_agree(monkeypatch, num_classes, chunk):
    monkeypatch.setattr(reliability_torch, "CHUNK", chunk)
    rng = np.random.default_rng(num_classes)
    scores = torch.from_numpy(rng.normal(scale=4, size=(num_classes, 9, 31)))
    labels = torch.from_numpy(rng.integers(-1, num_classes, size=(9, 31)))
    bands = rng.integers(0, 4, size=279).astype(np.uint8)
    reference = rng.integers(0, num_classes, size=279).astype(np.int16)
    layout = Layout(num_classes, (50, 15), 15, 4)
    results, predictions = [], []
    for implementation in (reliability_numba, reliability_torch):
        prediction = np.empty(279, np.int16)
        results.append(implementation.count_voxels(scores, labels, layout, bands, reference, prediction))
        predictions.append(prediction)
    np.testing.assert_array_equal(*predictions)
    for f in fields(results[0]):
        mine, its = (getattr(result, f.name) for result in results)
        if mine.dtype == np.int64:
            np.testing.assert_array_equal(mine, its, err_msg=f.name)
        else:
            np.testing.assert_allclose(mine, its, rtol=1e-12, atol=1e-13, err_msg=f.name)


def test_the_reference_refuses_what_is_not_finite():
    with pytest.raises(InputError, match="scores has 2 values that are NaN or infinite"):
        reliability_torch.count_voxels(torch.full((2, 1), torch.nan), torch.zeros(1).long(), Layout(2, (5,), 0))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_cuda_tensor_is_counted_on_its_device():
    from segcal.kernels.reliability import count_voxels

    scores = torch.randn(4, 5000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    labels = torch.randint(-1, 4, (5000,), generator=torch.Generator().manual_seed(1))
    layout = Layout(4, (50, 15), 15)
    here, there = count_voxels(scores, labels, layout), count_voxels(scores.cuda(), labels, layout)
    np.testing.assert_array_equal(here.cells, there.cells)
    np.testing.assert_allclose(here.sums, there.sums, rtol=1e-12)
