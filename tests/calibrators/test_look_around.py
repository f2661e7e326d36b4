import re

import numpy as np
import pytest
import torch

from segcal import make_calibrator
from segcal.calibrators.look_around import each_part, with_margin, without_margin
from segcal.errors import InputError
from segcal.types import Context


def normal(*shape, seed=0, dtype=torch.float64):
    return (4 * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)).to(dtype)


@pytest.mark.parametrize(("space", "margin"), [((9, 7), (4, 4)), ((3, 9, 7), (0, 4, 4)), ((6, 9, 7), (4, 4, 4))])
def test_the_margin_is_the_reflection_of_numpy(space, margin):
    values = normal(2, 3, *space)
    expected = np.pad(values.numpy(), [(0, 0), (0, 0), *((width, width) for width in margin)], mode="reflect")
    assert np.array_equal(with_margin(values, margin).numpy(), expected)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_an_axis_that_is_too_short_is_continued_by_its_last_value(size):
    values = normal(2, 3, size, 9)
    long = np.pad(values.numpy(), [(0, 0), (0, 0), (0, 0), (4, 4)], mode="reflect")
    expected = np.pad(long, [(0, 0), (0, 0), (4, 4), (0, 0)], mode="edge")
    assert np.array_equal(with_margin(values, (4, 4)).numpy(), expected)


def test_what_is_inside_the_margin_is_what_was_there():
    values = normal(2, 3, 5, 6, 7)
    assert torch.equal(without_margin(with_margin(values, (0, 4, 2)), (0, 4, 2)), values)


def test_the_overlap_is_needed(randomise):
    """Pieces without what their border voxels see give something else."""
    calibrator = randomise(make_calibrator("lts_ti", 5))
    logits = normal(1, 5, 40, 23)
    with torch.no_grad():
        whole = calibrator.scores(logits)
        pieces = torch.cat([calibrator.scores(part) for part in logits.split(10, dim=2)], dim=2)
    assert float((pieces - whole).abs().max()) > 0.1


@pytest.mark.parametrize("name", ["lts", "lts_ti", "ibts"])
@pytest.mark.parametrize("shape", [(4, 5), (4, 5, 7), (4, 5, 2, 3, 2, 3)])
def test_what_is_neither_image_nor_volume_is_refused(name, shape):
    text = f"logits has {len(shape) - 2} axes of space, but .* sees neighbours and needs 2 .image. or 3 .volume."
    with pytest.raises(InputError, match=text):
        make_calibrator(name, 5)(normal(*shape))


@pytest.mark.parametrize("name", ["lts", "lts_ti", "ibts"])
@pytest.mark.parametrize("space", [(1, 1), (2, 3), (1, 9), (1, 8, 7), (5, 1, 1)])
def test_images_smaller_than_the_kernel_and_single_slices_are_calibrated(name, space, randomise):
    calibrator = randomise(make_calibrator(name, 5))
    logits = normal(2, 5, *space)
    out = calibrator(logits)
    assert out.shape == logits.shape
    assert bool(torch.isfinite(out).all())
    assert torch.equal(out.argmax(1), logits.argmax(1))
    torch.testing.assert_close(make_calibrator(name, 5)(logits), logits.log_softmax(1), rtol=0, atol=1e-12)


def test_all_parts_of_a_context_are_cut_and_continued_alike():
    context = Context(image=torch.arange(12.0).reshape(1, 2, 2, 3), disagreement=torch.arange(6.0).reshape(1, 2, 3))
    moved = each_part(context, lambda part: with_margin(part, (0, 1)))
    assert moved.image.shape == (1, 2, 2, 5)
    assert moved.disagreement.tolist() == [[[1, 0, 1, 2, 1], [4, 3, 4, 5, 4]]]
    assert each_part(Context(), lambda part: part) == Context()
    assert each_part(None, lambda part: part) is None


@pytest.mark.parametrize("name", ["lts", "lts_ti", "ibts"])
@pytest.mark.parametrize("shape", [(1, 3, 0, 5), (2, 3, 4, 0), (1, 3, 2, 0, 4)])
def test_an_image_without_voxels_is_refused_in_one_sentence(name, shape):
    text = f"logits has shape {shape}, but {name} sees neighbours and needs at least one voxel along every axis"
    with pytest.raises(InputError, match=re.escape(text)):
        make_calibrator(name, 3)(torch.zeros(shape))
