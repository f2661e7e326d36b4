r"""Adaptation to another site without labels: class frequencies there, estimated from predictions alone.

Under a *prior shift* classes are more or less frequent than where labels were, and each looks as it did. A decision f
(predicted class and one of three ranges of confidence) then has the frequency

.. math:: \phi'_f = \sum_y \frac{\pi'_y}{\pi_y} J_{fy},

where J is the joint frequency of decisions and labels that the calibrator remembers of labelled cases, and
:math:`\pi_y = \sum_f J_{fy}`. All frequencies are means of shares of voxels over groups, or cases that belong to none.
So a large case counts as a small one. Two estimates of :math:`\pi'`: "em", the maximum of the likelihood :math:`\sum_f
\phi'_f \log \phi_f`, found by expectation maximisation (Saerens et al., 2002); "bbse", non-negative least squares
(Lipton et al., 2018).

There are more decisions than classes, so a prior shift can be told from another change. The distance :math:`d = \frac12
\sum_f |\phi'_f - \phi_f|` at the estimate is compared with a reference. For that, some of the labelled groups stand for
the new site and the others for the old one, many times over. Nothing is changed if

- d is larger than that (p at most 0.05): more than the frequencies of classes has changed;
- frequencies differ by no more than they do between labelled groups;
- probabilities were off by class where the labels are, since Bayes' rule takes them to be right. With :math:`b_y = \sum
  (y - p_y) / \sum p_y (1 - p_y)`, the bias that a Newton step would add to a class there, :math:`\sum_y \pi'_y |b_y|`
  is more than half of :math:`\sum_y \pi'_y |\hat a_y|`.

Otherwise the log ratio of each class is shrunk by its noise,

.. math:: a_y = \hat a_y \max\bigl(0, 1 - \sigma_y^2 / \hat a_y^2\bigr),

with its spread :math:`\sigma_y` between labelled groups, bounded by :data:`LARGEST`, and 0 for a class that fewer than
:data:`ENOUGH` labelled groups have (:mod:`segcal.calibrators.prior_shift`).
"""

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import scipy
import torch

from segcal.arguments import typed
from segcal.calibrators.prior_shift import PriorShift
from segcal.cases.base import CaseError
from segcal.cases.parallel import Workers
from segcal.errors import InputError
from segcal.fitting.certificate import Fitted
from segcal.fitting.fit import check_device
from segcal.fitting.reference import Reference, read_sparse
from segcal.names import class_titles
from segcal.trust.conformal import mean_over_draws
from segcal.trust.entry import enter, known_reference, walk
from segcal.trust.estimates import SumTable
from segcal.trust.learn import Summer
from segcal.trust.sums import CONFIDENT, VOXELS, Floats

# Labelled groups that are needed at all, new ones, and labelled groups that must have a class.
HOME, NEW, ENOUGH = 10, 3, 3
# How often labelled groups stand for a new site, and when a distance is too large for them.
PLACES, RARE = 199, 0.05
# No class is taken to be more than so many times as frequent, or as rare.
LARGEST = 20.0
# How much of a correction the calibrator's own bias may be.
OWN_BIAS = 0.5
STEPS = 500
Method = Literal["em", "bbse"]


@dataclass(frozen=True)
class Adapted:
    """The result of adapting to predictions of a new site.

    Attributes:
        fitted: the calibrator for that site; the one that was given if nothing is changed.
        adapted: whether it is another one.
        verdict: why, in one or two sentences.
        classes: their titles.
        before: frequency of each class among the labelled cases.
        after: estimated frequency at the new site.
        ratio: by what its probabilities are multiplied; 1 where nothing is changed.
        shift_p: how often labelled cases fit a prior shift this badly.
        change_p: how often frequencies differ so much between labelled cases.
        own_bias: that of the calibrator where it was fitted, as a share of the correction.
        draws: new groups, and labelled ones.
    """

    fitted: Fitted
    adapted: bool
    verdict: str
    classes: tuple[str, ...]
    before: tuple[float, ...]
    after: tuple[float, ...]
    ratio: tuple[float, ...]
    shift_p: float
    change_p: float
    own_bias: float
    draws: tuple[int, int]

    def __str__(self) -> str:
        return self.verdict


@typed
def adapt(
    fitted: Fitted | str | os.PathLike[str],
    cases: Any,
    *,
    method: Method = "em",
    device: str | torch.device | None = None,
    workers: Workers = 1,
    ignore_pooling: bool = False,
    failed: Callable[[CaseError], None] | None = None,
    progress: Callable[[str], None] | None = None,
    **declared: Any,
) -> Adapted:
    """Estimate the class frequencies of a new site from its predictions, and fit the calibrator to them.

    Args:
        fitted: what :func:`segcal.learn_trust` returned, or the folder of a calibrator that ``segcal fit`` wrote.
        cases: cases of the new site, or arrays; labels are not looked at.
        method: "em" or "bbse".
        device: where to calibrate; the CPU if not given.
        workers: how many processes work on cases.
        ignore_pooling: go on although the calibrator was fitted for another pooling.
        failed: takes the error of a case that is not usable, which is then left out; without it the error is raised.
        progress: called with the id of each case when it is done.
        declared: what is known of arrays, such as `kind`.

    >>> import segcal
    >>> rng = np.random.default_rng(0)
    >>> labels = rng.choice(2, size=(24, 9, 70), p=[0.8, 0.2])
    >>> logits = rng.normal(size=(24, 2, 9, 70)) + 2 * np.stack([labels == 0, labels == 1], 1)
    >>> known = segcal.learn_trust(segcal.fit("ts", logits, labels), logits, labels)
    >>> adapt(known, logits[:6]).verdict
    'class frequencies differ by no more than between labelled cases (p = 0.73): nothing is changed'
    """
    known, reference, opened = enter(fitted, known_reference, cases, declared, ignore_pooling)
    home = _remembered(reference)
    summer = Summer(opened.with_disagreement(), [known.calibrator.to(check_device(device))])
    rows, groups = [], []
    for _, (sums,) in walk(opened.ids, summer, workers, failed, progress):
        rows.append(sums.decided / max(sums.alone[VOXELS], 1))
        groups.append(sums.group)
    new = _by_draw(np.array(rows), groups) if rows else np.zeros((0, 0))
    if len(home) < HOME or len(new) < NEW:
        raise InputError(
            f"there are {len(new)} new groups (or single cases) and {len(home)} labelled ones, but {NEW} and "
            f"{HOME} are needed to know class frequencies. Add cases."
        )
    return _judged(known, home, new, method, _bias(SumTable.read(reference)))


def _remembered(reference: Reference) -> Floats:
    """Return the joint frequencies of labels and decisions ``(draws, classes, decisions)``."""
    if not all(each.joint for each in reference.cases):
        raise InputError(
            "the reference does not tell decisions by label, but class frequencies are estimated from these. Fit again "
            "with this version, or pass labelled cases to segcal.learn_trust."
        )
    classes = len(reference.curves)
    tables = np.stack([read_sparse(each.joint, classes, classes * (len(CONFIDENT) + 1)) for each in reference.cases])
    return _by_draw(tables / tables.sum((1, 2), keepdims=True), [each.group for each in reference.cases])


def _by_draw(rows: Floats, groups: Sequence[str]) -> Floats:
    own: dict[str, list[int]] = {}
    for place, group in enumerate(groups):
        own.setdefault(group, []).append(place)
    return np.stack([mean_over_draws(rows[places], [str(place) for place in places]) for places in own.values()])


def _bias(table: SumTable) -> Floats:
    """Return the bias of each class where labels are, in nats; 0 for a class whose probability is always 0 or 1."""
    sums = [
        mean_over_draws(column / table.voxels[:, None], table.groups)
        for column in (table.truth, table.prob, table.spread)
    ]
    return np.divide(sums[0] - sums[1], sums[2], out=np.zeros_like(sums[0]), where=sums[2] > 0)


class _Estimate:
    """Frequencies at a new site, how they differ, and how far a prior shift is from explaining them."""

    def __init__(self, home: Floats, new: Floats, method: Method) -> None:
        joint, seen = home.mean(0), new.mean(0)
        self.before = joint.sum(1)
        there = self.before > 0
        own = joint[there]
        ratio = np.ones(len(joint))
        ratio[there] = (_em if method == "em" else _bbse)(own, seen)
        self.after = self.before * ratio
        self.distance = 0.5 * float(np.abs(seen - ratio @ joint).sum())
        self.change = 0.5 * float(np.abs(self.after - self.before).sum())
        self.log_ratio = np.log(np.clip(ratio, 1 / LARGEST, LARGEST))


def _em(joint: Floats, seen: Floats) -> Floats:
    """Return the ratios at the maximum of the likelihood; decisions that no label has say nothing."""
    before = joint.sum(1)
    ratio = np.ones(len(joint))
    for _ in range(STEPS):
        mixed = ratio @ joint
        step = (joint * np.divide(seen, mixed, out=np.zeros_like(seen), where=mixed > 0)).sum(1) / before
        ratio, old = ratio * step / float(ratio * step @ before), ratio
        if np.abs(ratio - old).max() < 1e-9:
            break
    return ratio


def _bbse(joint: Floats, seen: Floats) -> Floats:
    """Return non-negative ratios by least squares, with frequencies that sum to one."""
    before = joint.sum(1)
    found = scipy.optimize.nnls(np.vstack([joint.T, 1e3 * before]), np.append(seen, 1e3))[0]
    return np.asarray(found / float(found @ before))


def _judged(fitted: Fitted, home: Floats, new: Floats, method: Method, bias: Floats) -> Adapted:
    found = _Estimate(home, new, method)
    rng = np.random.default_rng(0)
    count = min(len(new), len(home) // 2)
    null = []
    for _ in range(PLACES):
        order = rng.permutation(len(home))
        null.append(_Estimate(home[order[count:]], home[order[:count]].sum(1), method))
    shift_p, change_p = (
        (1 + sum(getattr(one, name) >= getattr(found, name) for one in null)) / (PLACES + 1)
        for name in ("distance", "change")
    )
    noise = np.square([one.log_ratio for one in null]).mean(0)
    evidence = (home.sum(2) > 0).sum(0) >= ENOUGH
    square = np.square(found.log_ratio)
    ratio = found.log_ratio * np.where(evidence & (square > noise), 1 - noise / np.maximum(square, 1e-300), 0)
    own_bias = float(found.after @ np.abs(bias)) / max(float(found.after @ np.abs(found.log_ratio)), 1e-300)
    adapted = shift_p > RARE and change_p <= RARE and own_bias <= OWN_BIAS and bool(ratio.any())
    titles = class_titles(fitted.class_names, len(ratio))
    return Adapted(
        fitted=_shifted(fitted, ratio) if adapted else fitted,
        adapted=adapted,
        verdict=_words(adapted, shift_p, change_p, own_bias, titles, found),
        classes=titles,
        before=tuple(found.before.tolist()),
        after=tuple(found.after.tolist()),
        ratio=tuple(np.exp(ratio).tolist()) if adapted else (1.0,) * len(ratio),
        shift_p=shift_p,
        change_p=change_p,
        own_bias=own_bias,
        draws=(len(new), len(home)),
    )


def _words(
    adapted: bool, shift_p: float, change_p: float, own_bias: float, titles: Sequence[str], found: _Estimate
) -> str:
    if shift_p <= RARE:
        return (
            f"the predictions differ from those of labelled cases in more than class frequencies (p = {shift_p:.2g}): "
            "nothing is changed. Fit again on labelled cases of this site."
        )
    if change_p <= RARE and own_bias > OWN_BIAS:
        return (
            f"class frequencies have changed (p = {change_p:.2g}), but the calibrator is off by class where it was "
            f"fitted, by {own_bias:.0%} of the correction: nothing is changed. Fit again on labelled cases of this "
            "site."
        )
    if not adapted:
        return (
            f"class frequencies differ by no more than between labelled cases (p = {change_p:.2g}): nothing is changed"
        )
    most = int(np.abs(found.after - found.before).argmax())
    return (
        f"class frequencies have changed (p = {change_p:.2g}), most that of {titles[most]}: {found.before[most]:.1%} "
        f"of the voxels in labelled cases, about {found.after[most]:.1%} here. Probabilities are weighed by that, and "
        "masks stay."
    )


def _shifted(fitted: Fitted, log_ratio: Floats) -> Fitted:
    """Return the calibrator with these ratios in place of those it has, if any; what it remembers is of the other."""
    inner = fitted.calibrator
    found = PriorShift(inner.num_classes, inner.cpu())
    found.log_ratio.data = torch.from_numpy(log_ratio - math.log(float(np.exp(log_ratio).mean())))
    return replace(fitted, calibrator=found.eval().requires_grad_(False), reference=None, objects=None)
