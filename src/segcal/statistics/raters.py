r"""Counts of a case per vote of several raters, masks of each rater, and agreement of raters.

Voxels that all raters give one class are counted as if they had one label. The others are counted once for each class
that a rater marked, and counts are times its votes: whole numbers. Bands lie about the boundary of the majority.

How far raters agree bounds what can be reached. With shares :math:`t_{vc}`, no predictor has a mean NLL below
:math:`\frac1N \sum_v \sum_c -t_{vc} \log t_{vc}`, nor a Brier score below :math:`\frac1N \sum_v (1 - \sum_c t_{vc}^2)`.
Agreement is the chance that two raters, drawn at random with their weights, give a voxel the same label.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from typing import Annotated

import numpy as np
import scipy
import torch
from torch import Tensor

from segcal.kernels.raw_tables import Map, RawTables, add_votes, merge_energy
from segcal.raters import Votes
from segcal.statistics.additive import FIXED, PER_CASE, AdditiveTable, Likelihood
from segcal.statistics.boundary import LabelBands
from segcal.types import IGNORED

GATHERED = 1 << 20  # voxels at a time


@dataclass(frozen=True)
class RaterTable(AdditiveTable):
    """Agreement of the raters of a case, or of several, with each other and with the prediction."""

    votes: int  # that were cast
    pairs: int  # of votes of two raters for one voxel
    agreeing: int  # pairs for one class
    nll: float  # of the prediction and, below, the least that raters leave; sums in units of all votes of a voxel
    brier: float
    entropy: float
    impurity: float
    most: float  # votes for the class with most votes in its voxel, in the same units
    each: np.ndarray  # (raters, truth, prediction) int64, voxels; no raters of shares
    between: np.ndarray  # (pairs of raters, one, other) int64, voxels
    majority: np.ndarray  # (truth, prediction) int64, voxels
    weights: Annotated[tuple[int, ...], FIXED]  # of the raters; of shares the votes of a voxel
    expected: Annotated[np.ndarray | None, PER_CASE] = None  # (classes,) sum of probabilities over voxels
    volumes: Annotated[np.ndarray | None, PER_CASE] = None  # (raters that have the case, classes) voxels


def count_votes(
    scores: Tensor, votes: Votes, count: Callable[..., RawTables], bands: Map, reference: Map
) -> tuple[RawTables, int]:
    """Return the tables of one case and how many voxels have votes.

    `count` is given scores, labels, band codes, reference predictions, and whether predictions are wanted.
    """
    whole = votes.agreed
    parts = [(votes.full, count(scores, votes.labels(whole), bands, reference, True))]
    energy = [(parts[0][1].voxels(), parts[0][1].energy)]
    split = torch.from_numpy((whole == IGNORED) & (votes.cast > 0))[votes.code.reshape(-1).int()]
    places = split.nonzero().squeeze(1)
    flat = scores.reshape(len(scores), -1)
    for part in places.split(GATHERED) if len(places) else ():
        columns = flat[:, part.to(flat.device)]
        free = torch.logsumexp(columns.double(), 0).cpu().numpy()
        energy.append((len(free), np.array([free.mean(), np.square(free - free.mean()).sum()])))
        entries = votes.part(part).entries()
        for size in entries.votes.unique().tolist():
            own = entries.index[entries.votes == size]
            at = part[own].numpy()
            codes, old = (None if each is None else each[at] for each in (bands, reference))
            label = entries.label[entries.votes == size]
            parts.append((size, count(columns[:, own.to(flat.device)], label, codes, old, False)))
    found = add_votes(parts, votes.total)
    moments = energy[0]
    for other in energy[1:]:
        moments = (moments[0] + other[0], merge_energy(*moments, *other))
    found.offset[0] = max(float(own.offset[0]) for _, own in parts)
    found.ignored[0] = int(votes.patterns()[votes.cast == 0].sum())
    return found._replace(energy=moments[1]), moments[0]


def bands_of(bands: LabelBands, votes: Votes) -> LabelBands:
    """Return the bands of the majority with the votes in each; distances are those of its voxels, in units of T."""
    code = torch.from_numpy(bands.code.astype(np.int64)) * len(votes.count) + votes.code.reshape(-1)
    often = torch.bincount(code, minlength=(len(bands.count) + 1) * len(votes.count)).numpy()
    count = (often.reshape(-1, len(votes.count)) @ votes.cast)[: len(bands.count)]
    share = np.divide(count, bands.count * votes.total, out=np.zeros(len(count)), where=bands.count > 0)
    return LabelBands(bands.edges, bands.code, count, bands.distance * share)


def rater_table(votes: Votes, prediction: np.ndarray, own: Likelihood, sums: Map, voxels: int) -> RaterTable:
    """Return the agreement of raters with each other and with the prediction ``(*space)`` of a case."""
    classes, cast = votes.count.shape[1], votes.cast
    joint = torch.from_numpy(prediction.reshape(-1).astype(np.int64)) + classes * votes.code.reshape(-1).long()
    table = torch.bincount(joint, minlength=classes * len(cast)).numpy().reshape(len(cast), classes)
    often = table.sum(1)
    marks = np.zeros((len(cast), 0), np.int32) if votes.marks is None else votes.marks
    # A vote and itself are no pair; of shares each vote is a rater.
    squares = (marks >= 0) @ np.square(votes.weights[: marks.shape[1]]) if marks.shape[1] else cast
    share = votes.count / np.maximum(cast, 1)[:, None]
    entropy = scipy.special.entr(share).sum(1) @ (often * cast) / votes.total
    impurity = (1 - np.square(share).sum(1)) @ (often * cast) / votes.total
    each = np.zeros((marks.shape[1], classes, classes), np.int64)
    for mark, target in zip(marks.T, each, strict=True):
        np.add.at(target, mark[mark >= 0], table[mark >= 0])
    majority = np.zeros((classes, classes), np.int64)
    np.add.at(majority, votes.majority[cast > 0], table[cast > 0])
    pairs = list(combinations(marks.T, 2))
    between = np.zeros((len(pairs), classes, classes), np.int64)
    for (one, other), target in zip(pairs, between, strict=True):
        both = (one >= 0) & (other >= 0)
        np.add.at(target, (one[both], other[both]), often[both])
    return RaterTable(
        votes=int(cast @ often),
        pairs=int((cast**2 - squares) @ often),
        agreeing=int(((votes.count**2).sum(1) - squares) @ often),
        nll=own.nll,
        brier=own.brier,
        entropy=float(entropy),
        impurity=float(impurity),
        most=float(votes.count.max(1, initial=0) @ often / votes.total),
        each=each,
        between=between,
        majority=majority,
        weights=votes.weights,
        expected=None if sums is None else sums * (votes.total * voxels / max(own.voxels, 1)),
        volumes=each.sum(2),
    )
