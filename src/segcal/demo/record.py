"""What the shipped ensembles score on held-out cases, written beside their weights and checked by a test.

Dice is as in :mod:`segcal.training.validation`; NLL is the mean over the voxels of a case that count, in nats; ECE
has 50 equal bins ``(lo, hi]`` of the winner's probability, a case at a time. All are means over cases. It is computed
here and not by :mod:`segcal.metrics`, so that the record can catch an error there.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from segcal.demo.ensembles import predict
from segcal.demo.tasks import HELD_OUT, Task
from segcal.numerics import canonical_logits
from segcal.pooling import pool
from segcal.training import UNet, case_dice
from segcal.types import IGNORED, Labels, Logits

BINS = 50
Scores = dict[str, dict[str, float]]


def measure_case(task: Task, networks: Sequence[UNet], index: int) -> Scores:
    """Return Dice, NLL and ECE of each member and of the ensemble by both poolings, on one held-out case."""
    sample = task.sample(index, HELD_OUT)
    labels = torch.from_numpy(sample.labels)
    members = [predict(network, sample.image) for network in networks]
    maps = {f"member_{number}": member for number, member in enumerate(members)}
    maps |= {how: pool(members, how) for how in ("mean_logits", "mean_probs")}
    return {name: scores(logits, labels, not task.background) for name, logits in maps.items()}


def mean_scores(cases: Iterable[Scores]) -> Scores:
    """Return the means over cases; a Dice that is not defined is left out."""
    rows = list(cases)
    return {
        name: {
            key: float(torch.tensor([row[name][key] for row in rows], dtype=torch.float64).nanmean())
            for key in rows[0][name]
        }
        for name in rows[0]
    }


def scores(logits: Logits, labels: Labels, include_background: bool) -> dict[str, float]:
    """Return Dice, NLL and ECE of one case, logits ``(classes, *space)``."""
    valid = labels != IGNORED
    log_probs = canonical_logits(logits[:, valid].double(), axis=0)
    truth = labels[valid]
    confidence, predicted = log_probs.exp().max(dim=0)
    return {
        "dice": float(case_dice(logits, labels, include_background)),
        "nll": float(-log_probs.gather(0, truth[None]).mean()),
        "ece": _calibration_error(confidence, predicted == truth),
    }


def _calibration_error(confidence: Tensor, correct: Tensor) -> float:
    place = torch.ceil(confidence * BINS).long().clamp(1, BINS) - 1
    gaps = torch.zeros(BINS, dtype=torch.float64).index_add(0, place, correct.double() - confidence)
    return float(gaps.abs().sum() / len(confidence))
