import numpy as np
import pytest
import torch

from segcal import Context
from segcal.calibrators.neighbourhood import CONTEXTS, WINDOWS, each_context, neighbourhood
from segcal.errors import InputError


def logits_of(*shape, seed=0):
    return torch.as_tensor(3 * np.random.default_rng(seed).normal(size=shape))


def around_by_hand(logits, name, valid=None):
    """One context of logits (C, y, x), voxel by voxel, of the voxels that are valid; NaN elsewhere."""
    values = logits.numpy()
    ordered = np.sort(values, axis=0)
    gap, decided = np.minimum(ordered[-1] - ordered[-2], 8), values.argmax(0)
    there = np.ones(gap.shape, bool) if valid is None else valid
    found = np.full(gap.shape, np.nan)
    half = WINDOWS.get(name, 0) // 2
    for y, x in np.argwhere(there):
        window = slice(max(0, y - half), y + half + 1), slice(max(0, x - half), x + half + 1)
        inside = there[window]
        if name == "gap_image":
            found[y, x] = gap[there].mean()
        elif name.startswith("gap"):
            found[y, x] = gap[window][inside].mean()
        else:
            found[y, x] = (decided[window] == decided[y, x])[inside].mean()
    return found


@pytest.mark.parametrize("name", [name for name in CONTEXTS if name != "disagreement"])
@pytest.mark.parametrize("shape", [(3, 7, 50), (2, 1, 1), (4, 60, 3)])
def test_windows_are_those_of_a_plain_loop_and_end_at_the_border(name, shape):
    logits = logits_of(*shape)
    found = neighbourhood(logits[None], None, [name], "conic")[0, 0]
    np.testing.assert_allclose(found.numpy(), around_by_hand(logits, name), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", [name for name in CONTEXTS if name != "disagreement"])
@pytest.mark.parametrize("followed", [False, True])
def test_what_was_not_predicted_is_not_there(name, followed):
    logits = logits_of(3, 19, 70)
    valid = torch.as_tensor(np.random.default_rng(1).random((19, 70)) < 0.6)
    valid[:, :30], valid[4, 5] = False, True  # alone in its window
    found = neighbourhood(logits[None].requires_grad_(followed), Context(valid=valid[None]), [name], "conic")[0, 0]
    expected = around_by_hand(logits.detach(), name, valid.numpy())
    np.testing.assert_allclose(found.detach()[valid].numpy(), expected[valid], rtol=0, atol=1e-12)
    assert found.isfinite().all()


def test_windows_of_a_volume_lie_in_its_planes():
    logits = logits_of(1, 3, 4, 9, 11)
    names = [name for name in CONTEXTS if name in WINDOWS]
    found = neighbourhood(logits, None, names, "conic")
    for z in range(4):
        torch.testing.assert_close(found[:, :, z], neighbourhood(logits[:, :, z], None, names, "conic"), rtol=0, atol=0)


def test_disagreement_is_the_logarithm_of_what_is_given_and_never_minus_infinity():
    context = Context(disagreement=torch.tensor([[[0.0, 0.5]]]))
    found = neighbourhood(logits_of(1, 3, 1, 2), context, ["disagreement"], "conic")
    np.testing.assert_allclose(found.flatten().numpy(), [np.log(1e-6), np.log(0.5)])


def test_without_members_the_sentence_says_what_to_do():
    with pytest.raises(
        InputError, match="context has no disagreement, but this conic was fitted to see how much the m"
    ):
        neighbourhood(logits_of(1, 3, 4, 5), None, ["disagreement"], "conic")


def test_windows_need_planes():
    with pytest.raises(InputError, match="logits has 1 axes of space, but conic sees neighbours"):
        neighbourhood(logits_of(1, 3, 4), None, ["share_far"], "conic")


def test_a_part_of_an_image_is_told_what_the_whole_is_like():
    logits = logits_of(1, 3, 8, 9)
    whole = neighbourhood(logits, None, ["gap_image"], "conic")
    told = Context(mean_gap=whole[:, 0, 0, 0])
    assert torch.equal(neighbourhood(logits[..., :4], told, ["gap_image"], "conic"), whole[..., :4])


def test_what_is_not_wanted_or_not_known_is_nan():
    known = each_context(logits_of(1, 3, 4, 5), Context(), CONTEXTS)
    assert known.isnan().all(1).tolist() == [name == "disagreement" for name in CONTEXTS]
    some = each_context(logits_of(1, 3, 4, 5), Context(), ["share_far"])
    assert [name for name, row in zip(CONTEXTS, some, strict=True) if not row.isnan().any()] == ["share_far"]
    line = each_context(logits_of(1, 3, 7), Context(), CONTEXTS)
    assert [name for name, row in zip(CONTEXTS, line, strict=True) if not row.isnan().any()] == ["gap_image"]
