"""The bootstrap of both studies: all seeds of all losses are tested on the same cases, which are drawn once for all."""

from collections.abc import Sequence
from functools import cache

import numpy as np

from segcal.resample import Draws

# With 2,000, counts of clear differences go up or down by two from one seed of the draws to another.
REPLICATES = 20_000


def shared_draws(values: Sequence[np.ndarray]) -> Draws:
    """Return the draws of all tables with as many seeds, and groups in each, as these values have."""
    return _drawn(len(values), len(values[0]))


@cache
def _drawn(seeds: int, groups: int) -> Draws:
    return Draws([[str(group) for group in range(groups)]] * seeds, REPLICATES)
