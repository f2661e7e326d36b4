"""Windows against counting one by one, on the CPU and on a CUDA device."""

import numpy as np
import pytest
import torch

from segcal.kernels import windows

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def plain(values, y, x, half):
    return values[max(0, y - half) : y + half + 1, max(0, x - half) : x + half + 1]


@pytest.fixture(params=DEVICES)
def device(request):
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    return request.param


@pytest.mark.parametrize(
    ("space", "width"), [((23, 31), 9), ((2, 40, 7), 25), ((1, 1), 5), ((3, 1, 30), 41), ((5, 2051), 9)]
)
def test_means_and_shares_are_those_of_counting(space, width, device):
    logits = 3 * torch.randn(2, 4, *space, generator=torch.Generator().manual_seed(0))
    gap, decided = windows.gap_and_winner(logits.to(device), 8.0)
    ordered = logits.sort(dim=1, descending=True, stable=True)
    torch.testing.assert_close(gap.cpu(), (ordered.values[:, 0] - ordered.values[:, 1]).clamp(max=8.0))
    assert torch.equal(decided.cpu().long(), ordered.indices[:, 0])
    around = torch.full((2, 3, *space), torch.nan, device=device)  # results of images lie apart
    windows.window_mean(gap, width, around[:, 0])
    windows.window_share(decided, 4, width, around[:, 2])
    assert around[:, 1].isnan().all()
    mean, share, gaps, codes = (
        each.cpu().flatten(0, -3).numpy() for each in (around[:, 0], around[:, 2], gap, decided)
    )
    for plane in range(len(gaps)):
        for y, x in np.ndindex(space[-2:]):
            inside = plain(codes[plane], y, x, width // 2) == codes[plane, y, x]
            assert abs(share[plane, y, x] - inside.mean()) < 1e-6
            expected = plain(gaps[plane], y, x, width // 2).mean(dtype=np.float64)
            assert abs(mean[plane, y, x] / expected - 1) < 1e-6


def test_gradients_are_left_to_tensor_operations():
    logits = torch.randn(1, 3, 5, 6)
    assert windows.serves(logits)
    assert not windows.serves(logits.requires_grad_())
    with torch.no_grad():
        assert windows.serves(logits)
