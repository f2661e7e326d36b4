"""The bootstrap of both studies: all seeds of all losses are tested on the same cases, which are drawn once for all."""

from collections.abc import Sequence
from functools import cache

import numpy as np

from segcal.resample import draw_counts
from segcal.summary import Draws

# With 2,000, counts of clear differences go up or down by two from one seed of the draws to another.
REPLICATES = 20_000


class SharedDraws(Draws):
    """Draws for seeds that are tested on the same groups: a replicate draws seeds and, once for all, their groups."""

    def __init__(self, seeds: int, groups: int, replicates: int, seed: int = 0) -> None:
        super().__init__([groups] * seeds, replicates, seed)
        # A generator of its own: what is drawn of the groups does not depend on how many seeds there are.
        drawn = draw_counts(np.random.default_rng([seed, 1]), replicates, groups)
        self.weights = [drawn[np.nonzero(self.repeat == r)[0]] for r in range(seeds)]


def shared_draws(values: Sequence[np.ndarray]) -> SharedDraws:
    """Return the draws of all tables with as many seeds, and groups in each, as these values have."""
    return _drawn(len(values), len(values[0]))


@cache
def _drawn(seeds: int, groups: int) -> SharedDraws:
    return SharedDraws(seeds, groups, REPLICATES)
