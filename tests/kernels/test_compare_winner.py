"""Where scores decide otherwise than wanted, against plain loops."""

import numpy as np
import pytest
import torch

from segcal.kernels.compare_winner import BELOW, EQUAL, WINS, compare_winner, winners


def plain(scores, wanted):
    found = np.zeros(wanted.shape, np.uint8)
    for place in np.ndindex(wanted.shape):
        values = [float(scores[(c, *place)]) for c in range(len(scores))]
        own = values[wanted[place]]
        first = min(c for c, value in enumerate(values) if value == max(values))
        found[place] = WINS if first == wanted[place] else BELOW if own < max(values) else EQUAL
    return found


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("space", [(7, 61), (3, 5, 41), (0, 4), (1,)])
def test_it_is_what_plain_loops_say(dtype, space):
    rng = np.random.default_rng(3)
    # Few values, so that many are equal; some small enough to be no normal numbers of float16.
    scores = torch.from_numpy(rng.choice([-2.0, 0.0, 3e-6, 1.5, 400.0], size=(5, *space))).to(dtype)
    wanted = torch.from_numpy(rng.integers(5, size=space))
    found = compare_winner(scores, wanted)
    assert found.dtype == np.uint8
    assert np.array_equal(found, plain(scores, wanted.numpy()))
    assert winners(scores).dtype == torch.int64
    assert np.array_equal(winners(scores), scores.double().numpy().argmax(0))
    across = scores.movedim(0, -1).contiguous().movedim(-1, 0)  # classes are neighbours in memory
    assert np.array_equal(compare_winner(across, wanted), found)
