"""The mask stays as people read it: ``calibrator(z).argmax(1) == z.argmax(1)``, whatever the numbers."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, given, settings

from segcal import CALIBRATORS, make_calibrator
from segcal.calibrators.base import Calibrator

KEEPERS = [name for name in CALIBRATORS if make_calibrator(name, 3).preserves]
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def crowded(classes, dtype, offset, scale, seed):
    """Voxels ``(n, classes)`` whose leaders stand 0 to 3 units in the last place apart, in any order of classes."""
    generator = torch.Generator().manual_seed(seed)
    count = 300
    logits = (scale * torch.randn(count, classes, generator=generator, dtype=torch.float64) + offset).to(dtype)
    top = logits.amax(1, keepdim=True)
    if dtype in (torch.float16, torch.bfloat16):
        integers = top.view(torch.int16)
        down = torch.where(top > 0, -1, 1).to(torch.int16)
        levels = [(integers + step * down).view(dtype) for step in range(4)]
    else:
        levels = [top]
        for _ in range(3):
            levels.append(torch.nextafter(levels[-1], torch.full_like(top, -torch.inf)))
    chosen = torch.randint(0, 4, logits.shape, generator=generator)
    near = torch.cat(levels, 1).gather(1, chosen)
    return torch.where(torch.rand(logits.shape, generator=generator) < 0.6, near, logits)


def as_taken(calibrator, voxels):
    return voxels if calibrator.pointwise else voxels.T.reshape(1, voxels.shape[1], 15, -1)


@pytest.mark.parametrize("name", KEEPERS)
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    classes=st.integers(2, 20),
    dtype=st.sampled_from(DTYPES),
    offset=st.sampled_from([0.0, 1.0, -30.0, 1e3, 1e4, -1e6, 1e6]),
    scale=st.sampled_from([1e-30, 1e-3, 1.0, 10.0]),
    temperature=st.sampled_from([0.05, 0.7, 1.0, 3.0, 1e3, 1e10]),
    seed=st.integers(0, 10_000),
)
def test_argmax_of_the_result_is_argmax_of_the_input(name, classes, dtype, offset, scale, temperature, seed, randomise):
    if dtype == torch.float16 and abs(offset) > 1e4:
        offset = 1e4  # what the type can hold
    calibrator = randomise(make_calibrator(name, classes), seed, edge=True)
    with torch.no_grad():
        for part, value in calibrator.named_parameters():
            if "inverse_temperature" in part:
                value.fill_(1 / temperature)
        logits = as_taken(calibrator, crowded(classes, dtype, offset, scale, seed))
        found = calibrator(logits)
        assert torch.equal(found.argmax(1), logits.argmax(1))
        assert float((found.exp().sum(1) - 1).abs().max()) < (1e-4 if found.dtype == torch.float32 else 1e-9)
        if calibrator.preserves == "order":
            order = logits.argsort(dim=1, descending=True, stable=True)
            ordered = found.gather(1, order)
            assert bool((ordered[:, 1:] <= ordered[:, :-1]).all())


@pytest.mark.gpu
@pytest.mark.parametrize("name", KEEPERS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_it_is_on_a_gpu_too(name, dtype, randomise):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    calibrator = randomise(make_calibrator(name, 6), edge=True).cuda()
    logits = as_taken(calibrator, crowded(6, dtype, 0.0, 4.0, seed=0))
    with torch.no_grad():
        found = calibrator(logits.cuda()).cpu()
    assert torch.equal(found.argmax(1), logits.argmax(1))


@pytest.mark.parametrize("name", KEEPERS)
def test_a_tie_falls_to_the_first_class_and_voxels_without_are_what_the_normalised_scores_are(name, randomise):
    calibrator = randomise(make_calibrator(name, 4))
    voxels = torch.tensor([[1.0, 2.0, 2.0, 0.5], [2.0, 2.0, 2.0, 2.0], [0.0, -3.0, -3.0, 0.0]]).repeat(15, 1)
    logits = as_taken(calibrator, voxels)
    assert torch.equal(calibrator(logits).argmax(1), logits.argmax(1))
    voxels = 4 * torch.randn(90, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    logits = as_taken(calibrator, voxels)
    torch.testing.assert_close(calibrator(logits), calibrator.scores(logits).log_softmax(1), rtol=1e-14, atol=1e-14)


def test_gradients_are_those_of_the_normalised_scores_where_a_tie_was_broken():
    calibrator = make_calibrator("ts", 3)
    with torch.no_grad():
        calibrator.inverse_temperature.fill_(0.3)
    voxels = torch.tensor([[1.0, 1.0000001, 0.0], [0.3, 0.2, 0.1]])
    found, plain = (x.clone().requires_grad_() for x in (voxels, voxels))
    factor = torch.tensor([[1.0, -2.0, 0.5], [0.1, 0.2, 0.3]])
    result = calibrator(found)
    assert result.argmax(1).tolist() == [1, 0]
    assert calibrator.scores(plain).log_softmax(1).argmax(1).tolist() == [0, 0]
    (result * factor).sum().backward()
    (calibrator.scores(plain).log_softmax(1) * factor).sum().backward()
    assert torch.equal(found.grad, plain.grad)


class Broken(Calibrator):
    """Promises what it does not do."""

    translation_invariant, preserves, fitted_by = True, "argmax", "nothing"

    def scores(self, logits, context=None):
        return -logits

    def num_identifiable(self):
        return 0


def test_a_broken_promise_is_not_hidden():
    logits = torch.randn(200, 4, generator=torch.Generator().manual_seed(0))
    logits[0] = torch.tensor([0.0, 0.0, 5.0, 1.0])
    assert torch.equal(Broken(4)(logits), (-logits).log_softmax(1))
