r"""A group that failed counts less, so that it does not decide the temperature alone.

With :math:`\ell_1 \ge \dots \ge \ell_G` the mean NLL of the groups under temperature scaling and Q their upper
quartile, the voxels of group g count

.. math:: w_g = \min\Bigl(1,\ \frac{c}{\ell_g}\Bigr), \qquad
          c = \max\Bigl(2 Q,\ \min_{k < 4} \frac{1}{4 - k} \sum_{i > k} \ell_i\Bigr)

times in what temperature scaling is fitted to: at most twice the quartile, or a quarter of the sum over all groups,
each counted so. At most three groups count less, and at most a quarter of them: if more fail, new ones will too. A
group that is touched is the further from the others, the more there are. The temperature is that of the weighted
voxels, found in three rounds. A case that is held out is measured as it is. Calibrators richer than a temperature learn
from all groups in full, since they can tell by its logits what failed.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from statistics import fmean

import numpy as np
import torch

from segcal.calibrators.base import Calibrator
from segcal.fitting.config import FitConfig
from segcal.fitting.convex_problem import COARSE_TOL, case_terms, solve_temperature
from segcal.fitting.division import FOLD_VOXELS, groups_of, thinned
from segcal.fitting.request import FitData

# Set on splits of cardiac patients: see decision 256 and decision 480.
BEYOND, QUARTILE, PARTS, ROUNDS = 2.0, 75, 4, 3
CPU = torch.device("cpu")


def weigh(data: FitData, calibrator: Calibrator, config: FitConfig) -> FitData:
    """Return the data with what each of their groups counts for a calibrator; the same if they have weights already."""
    if data.weights is not None or not calibrator.one_temperature or not config.outliers or config.method == "paper":
        return data
    cases, weights = data.cases, dict[str, float]()
    groups = groups_of(cases)
    few = thinned(data.source, FOLD_VOXELS, config.seed)
    for _ in range(ROUNDS):
        own = few.weighted(weights) if weights else few
        beta = float(solve_temperature(own, CPU, COARSE_TOL, approach=False).theta)
        found = weights_of({i: sums[0] for i, sums in few.by_case(partial(case_terms, beta))}, groups)
        if found == weights:
            break
        weights = found
    return replace(data, source=data.source.weighted(weights) if weights else data.source, weights=weights)


def weights_of(losses: Mapping[str, float], groups: Mapping[str, str]) -> dict[str, float]:
    """Return what the cases of groups far beyond the others count, from the mean NLL of every case.

    >>> weights_of({"a": 1.0, "b": 1.0, "c": 1.0, "d": 1.0, "e": 8.0}, dict(zip("abcde", "abcde")))
    {'e': 0.25}
    """
    means = {group: fmean(losses[i] for i in losses if groups[i] == group) for group in {groups[i] for i in losses}}
    ranked = sorted(means.values(), reverse=True)
    part = min(sum(ranked[k:]) / (PARTS - k) for k in range(PARTS))
    most = max(BEYOND * float(np.percentile(ranked, QUARTILE)), part)
    return {i: most / means[groups[i]] for i in losses if means[groups[i]] > most > 0}
