r"""Of few groups, one that failed counts less, so that it does not decide the temperature alone.

With :math:`\ell_g` the mean NLL of group g under temperature scaling and Q the upper quartile over groups, the voxels
of g count

.. math:: w_g = \min\bigl(1,\ 2 Q / \ell_g\bigr)

times in what is fitted. The temperature is that of the weighted voxels, found in three rounds. A case that is held out
is measured as it is. With ten groups or more, failed ones are representative of new cases, and all count alike.
Calibrators richer than a temperature learn from them.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from statistics import fmean

import numpy as np
import torch

from segcal.fitting.choice import ENOUGH_GROUPS
from segcal.fitting.convex_problem import COARSE_TOL, case_terms, solve_temperature
from segcal.fitting.division import FOLD_VOXELS, groups_of, thinned
from segcal.fitting.request import FitData

# Set on splits of cardiac patients: see decision 256.
BEYOND, QUARTILE, ROUNDS = 2.0, 75, 3
CPU = torch.device("cpu")


def weigh(data: FitData, seed: int) -> FitData:
    """Return the data with what each of their groups counts; as they are if that was done before."""
    if data.weights is not None:
        return data
    cases, weights = data.cases, dict[str, float]()
    groups = groups_of(cases)
    if len(set(groups.values())) >= ENOUGH_GROUPS:
        return replace(data, weights=weights)
    few = thinned(data.source, FOLD_VOXELS, seed)
    for _ in range(ROUNDS):
        own = few.weighted(weights) if weights else few
        beta = float(solve_temperature(own, CPU, COARSE_TOL, approach=False).theta)
        found = weights_of({i: sums[0] for i, sums in few.by_case(partial(case_terms, beta))}, groups)
        if found == weights:
            break
        weights = found
    return replace(data, source=data.source.weighted(weights) if weights else data.source, weights=weights)


def weights_of(losses: Mapping[str, float], groups: Mapping[str, str]) -> dict[str, float]:
    """Return what the cases of groups far beyond the quartile count, from the mean NLL of every case.

    >>> weights_of({"a": 1.0, "b": 1.0, "c": 1.0, "d": 1.0, "e": 8.0}, dict(zip("abcde", "abcde")))
    {'e': 0.25}
    """
    means = {group: fmean(losses[i] for i in losses if groups[i] == group) for group in {groups[i] for i in losses}}
    most = BEYOND * float(np.percentile(list(means.values()), QUARTILE))
    return {i: most / means[groups[i]] for i in losses if means[groups[i]] > most > 0}
