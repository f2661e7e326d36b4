r"""From objects of labelled cases to what is stated of new ones, structure by structure.

**Probability that an object is real.** The features x of an object are log-odds of the mean and of the largest
probability in it, log of its size, edge and border. Where all cases have it, the members' disagreement is one too. Each
has mean 0 and deviation 1. With them :math:`p(x) = \sigma(b + w^\top x)` maximises

.. math:: \sum_i y_i \log p(x_i) + (1 - y_i) \log (1 - p(x_i)) - \tfrac{s}{2} \|w - w_0\|^2, \qquad y_i \in [0, 1],

by Newton's method, over the objects and two that are average, one real and one not. :math:`w_0` is the plug-in: the
log-odds of the mean probability as they are, and nothing else. The strength s is that of :data:`STRENGTHS` with the
smallest loss on groups that were held out in turn. y is whether the object is real; and its Dice (0 if nothing is
there), which gives the expected Dice. Where fewer than :data:`LEAST` objects are real, or not, or these are of fewer
than three groups, s is the largest. This is the plug-in with an offset b: so few cannot teach more.

**Lists with few false objects.** The list of a case holds its objects with :math:`p \ge t`. Its loss for conformal risk
control (:func:`segcal.trust.conformal.first_controlled`) is its false share (0 if it is empty), the largest of this and
all higher t. It is averaged over the cases of a group and over groups that have an object of the structure. Then t is
the smallest of :data:`segcal.trust.sums.THRESHOLDS` that keeps the expected false share of a case's list at the bound
or below. p of a labelled object is that of a model that was learned without its group. New objects have the model of
all groups, so this holds about so and is not proved. With `proved`, the model is learned on every second group, and
thresholds and intervals on the others alone. Then it is proved, if the labelled cases were not used in the fit. Cases,
in groups, are exchangeable units; objects of one case may depend on each other in any way.

**Size.** For real objects, :math:`|T - O| / (1 + |O| (1 - \bar p))`is the error in voxels over the expected number of
wrong voxels. It has a conformal quantile q over groups: :math:`O \pm q (1 + |O| (1 - \bar p))`.

**Missed objects** of a case: the mean over groups of the mean over their cases, and the conformal quantile.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import expit, logit

from segcal.errors import InputError
from segcal.fitting.object_reference import OF_OBJECT, OF_STRUCTURE, ObjectReference
from segcal.fitting.reference import read_numbers
from segcal.trust.conformal import count_draws, first_controlled, mean_over_draws, quantile
from segcal.trust.sums import THRESHOLDS, Floats

# Objects that are real, and objects that are not, from which something is learned; groups from which anything is.
LEAST, FEWEST_GROUPS = 5, 5
FOLDS, PLUG_IN = 5, 1e9
STRENGTHS = (1.0, 10.0, 100.0, PLUG_IN)
# Probabilities are kept this far from 0 and 1: float32 has no more.
NEAREST = 1e-6


class Logistic(NamedTuple):
    """A map from features to a probability; the first weight is b."""

    centre: Floats
    scale: Floats
    weights: Floats

    def __call__(self, features: Floats) -> Floats:
        """Return one probability per row."""
        found: Floats = expit(self.weights[0] + (features - self.centre) / self.scale @ self.weights[1:])
        return found


def fit_logistic(features: Floats, targets: Floats, strength: float) -> Logistic:
    """Return the map with the largest penalised likelihood."""
    centre, scale = features.mean(0), features.std(0)
    scale = np.where(scale > NEAREST, scale, 1.0)
    rows = np.column_stack([np.ones(len(features)), (features - centre) / scale])
    rows, targets = np.concatenate([rows, np.eye(2, rows.shape[1])[[0, 0]]]), np.append(targets, [0.0, 1.0])
    usual, penalty = np.zeros(rows.shape[1]), np.full(rows.shape[1], strength)
    usual[1], penalty[0] = scale[0], 0
    found = usual.copy()

    def loss(at: Floats) -> float:
        odds = rows @ at
        return float(np.logaddexp(0, odds).sum() - targets @ odds + (penalty * (at - usual) ** 2).sum() / 2)

    now, before = loss(found), math.inf
    while before - now > 1e-10 * (1 + abs(now)):
        chance = expit(rows @ found)
        bend = (rows * (chance * (1 - chance))[:, None]).T @ rows + np.diag(penalty)
        step = np.linalg.solve(bend, rows.T @ (chance - targets) + penalty * (found - usual))
        while loss(found - step) > now and np.abs(step).max() > NEAREST:
            step /= 2
        before, now, found = now, min(now, loss(found - step)), found - step
    return Logistic(centre, scale, found)


def features_of(table: Floats, disagreement: bool) -> Floats:
    """Return the features of rows of `OF_OBJECT`."""
    size, mean, peak, edge, border, apart = table[:, 1:7].T
    inside = [logit(np.clip(each, NEAREST, 1 - NEAREST)) for each in (mean, peak)]
    return np.stack([*inside, np.log(size), edge, border, *([apart] if disagreement else [])], 1)


def folds_of(groups: Sequence[str] | np.ndarray, count: int) -> np.ndarray:
    """Return the fold of each row: groups are dealt in the order of their names.

    >>> folds_of(["b", "a", "b", "c"], 2).tolist()
    [1, 0, 1, 0]
    """
    return np.asarray(np.unique(np.asarray(groups, object), return_inverse=True)[1] % count)


class StructureModel(NamedTuple):
    """The model of the objects of one structure: how it was learned, of how many objects, real ones and groups.

    `chance` and `dice` are None where no labelled case has an object. `least` is the probability from which one is
    listed (infinite: none is; None: too few groups), and `spread` the q of sizes. `missed` is the mean and
    `missed_most` the quantile of missed objects (infinite: too few groups).
    """

    how: str
    objects: int
    real: int
    draws: int
    chance: Logistic | None
    dice: Logistic | None
    least: float | None
    spread: float
    missed: float
    missed_most: float


def structure_models(
    reference: ObjectReference, level: float, fdr: float, proved: bool = False
) -> tuple[list[StructureModel], bool]:
    """Return a model of each structure, and whether the disagreement of members is among its features."""
    groups = np.array([case.group for case in reference.cases], object)
    tables = [read_numbers(case.objects, -1, len(OF_OBJECT)) for case in reference.cases]
    rows, needed = np.concatenate(tables), FEWEST_GROUPS * (1 + proved)
    if len(set(groups)) < needed or not len(rows):
        raise InputError(
            f"the calibrator remembers {len(rows)} objects of {len(set(groups))} groups (or single cases), "
            f"but objects of {needed} groups are needed. Learn from more labelled cases."
        )
    judged = folds_of(groups, 2) == 1 if proved else np.ones(len(groups), bool)
    owners = np.repeat(np.arange(len(tables)), [len(each) for each in tables])
    apart, known = not np.isnan(rows[:, 6]).any(), ~np.isnan(rows[:, 7])
    counts = np.array([read_numbers(case.structures, -1, len(OF_STRUCTURE)) for case in reference.cases])
    found = []
    for place, structure in enumerate(reference.structures):
        own = known & (rows[:, 0] == structure)
        one = _model(rows[own], owners[own], groups, judged, proved, apart, level, fdr)
        missed, own_groups = counts[judged, place, 1], groups[judged].tolist()
        mean, most = float(mean_over_draws(missed, own_groups)), quantile(missed, own_groups, level)
        found.append(one._replace(missed=mean, missed_most=most))
    return found, apart


def _model(
    rows: Floats, owners: np.ndarray, groups: np.ndarray, judged: np.ndarray, proved: bool, apart: bool, level: float,
    fdr: float,
) -> StructureModel:  # fmt: skip
    own, real, x = groups[owners], rows[:, 7], features_of(rows, apart)
    tested = judged[owners]
    used, folds = ~tested if proved else tested, folds_of(own, FOLDS)
    found = StructureModel("nothing", len(rows), int(real.sum()), len(set(own)), None, None, None, math.inf, 0, 0)
    if not used.any() or not tested.any():
        return found
    few = min((own[used & (real == value)] for value in (0, 1)), key=len)
    learned, models = len(few) >= LEAST and len(set(few)) >= 3, []
    for targets in (rows[:, 8], real):
        strengths = STRENGTHS if learned else (PLUG_IN,)
        tried = {s: _held_out(x[used], targets[used], folds[used], s) for s in strengths}
        strength = min(strengths, key=lambda s: _loss(tried[s], targets[used]))
        models.append(fit_logistic(x[used], targets[used], strength))
    dice, chance = models
    scores = chance(x[tested]) if proved else tried[strength]
    hits = tested & (real == 1)
    error = np.abs(rows[hits, 9] - rows[hits, 1]) / (1 + rows[hits, 1] * (1 - rows[hits, 2]))
    return found._replace(
        how="learned" if learned else "plug-in",
        chance=chance,
        dice=dice,
        least=_least(owners[tested], groups, scores, real[tested], fdr),
        spread=quantile(error, own[hits].tolist(), level),
    )


def _held_out(features: Floats, targets: Floats, folds: np.ndarray, strength: float) -> Floats:
    """Return the probability of each row by a model of the other folds."""
    found = np.zeros(len(targets))
    for fold in np.unique(folds):
        own = folds == fold
        kept = ~own if not own.all() else own  # one group alone has no other
        found[own] = fit_logistic(features[kept], targets[kept], strength)(features[own])
    return found


def _least(owners: np.ndarray, groups: np.ndarray, scores: Floats, real: Floats, fdr: float) -> float | None:
    """Return the smallest threshold whose lists have a false share of at most `fdr`, on average over groups."""
    cases, place = np.unique(owners, return_inverse=True)
    listed = (scores[:, None] >= THRESHOLDS).astype(np.float64)
    counts, wrong = np.zeros((2, len(cases), len(THRESHOLDS)))
    np.add.at(counts, place, listed)
    np.add.at(wrong, place, listed * (real == 0)[:, None])
    losses = np.maximum.accumulate((wrong / np.maximum(counts, 1))[:, ::-1], 1)[:, ::-1]
    own = groups[cases].tolist()
    # Behind the last threshold nothing is listed, and nothing is wrong.
    found = first_controlled(np.append(mean_over_draws(losses, own), 0.0), count_draws(own), fdr)
    return None if found is None else float(np.append(THRESHOLDS, math.inf)[found])


def _loss(chance: Floats, targets: Floats) -> float:
    near = np.clip(chance, NEAREST, 1 - NEAREST)
    return float(-(targets * np.log(near) + (1 - targets) * np.log(1 - near)).sum())
