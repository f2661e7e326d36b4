r"""Masks and label sets whose errors are bounded on average over groups, by conformal risk control.

A structure has a calibrated probability p and a share a. Its thresholds come from the mean losses of labelled cases
(:class:`segcal.fitting.reference.LossCurves`), the widest choice first
(:func:`segcal.trust.conformal.first_controlled`):

- *outer mask* :math:`\{p \ge t\}`, with the mask itself: misses at most a of the structure, on average over groups
  that have it. t is the largest that does, at most 0.5.
- *inner mask* :math:`\{p \ge t\}`: at most a of it is something else, on average over groups; an empty one has no
  error. The loss is made monotone by the largest of all higher thresholds. t is the smallest that does, at least 0.5,
  so that an inner mask is part of the mask.
- *label set* of a voxel: the classes whose outer mask has it (LAC), or the classes :math:`c` with
  :math:`\sum_{k: p_k > p_c} p_k + p_c \le q_c` (APS). The class that was decided always belongs to it. Of the voxels of
  a class at most a have a set without it, on average over groups that have the class. Every class has its own
  threshold, so frequent classes do not make up for a rare one.

A case that belongs to no group is a group of its own. Its loss is the mean over its cases, and every group counts the
same. Nothing is promised for a single case. With `at_once` each of m structures gets the share a / m. The largest loss
among them is then at most a on average, for each kind of mask by itself. All of this is proved for a reference that had
no part in the fit. Of one that had, by folds or as validation cases, it holds about so, and nothing is proved.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from segcal.atomic import remove_leftovers, written
from segcal.calibrators.base import Calibrator
from segcal.cases.base import Case, Cases
from segcal.errors import InputError
from segcal.evaluation.slabs import Slab, score_slabs
from segcal.fitting.certificate import Fitted
from segcal.fitting.reference import LossCurves, Reference, read_numbers
from segcal.numerics import decided, winner
from segcal.target import entries
from segcal.trust.conformal import count_draws, draws_needed, first_controlled
from segcal.trust.sums import THRESHOLDS

# What a voxel of a nested map is: outside, in the outer mask, in the mask, in the inner mask.
OUTSIDE, OUTER, MASK, INNER = range(4)
MIDDLE = len(THRESHOLDS) // 2


class Bounds(NamedTuple):
    """The thresholds of one class; None where the labelled cases support none.

    Attributes:
        outer: probability at which a voxel belongs to the outer mask.
        inner: probability at which a voxel belongs to the inner mask.
        rank: probability of the classes down to this one up to which it belongs to the label set by rank.
        present: groups that have the structure.
    """

    outer: float | None
    inner: float | None
    rank: float | None
    present: int


def bounds_of(reference: Reference, share: float, classes: Sequence[int] = (), at_once: bool = False) -> list[Bounds]:
    """Return the thresholds of every class for a share of errors.

    Args:
        reference: of a fitted calibrator.
        share: the bound a of each loss.
        classes: those that are asked for, all if none are named; of the others no bound is computed.
        at_once: bound the largest loss among all of them.
    """
    wanted = set(classes or range(len(reference.curves)))
    share = share / len(wanted) if at_once else share
    draws = count_draws([each.group for each in reference.cases])
    check_share(share, draws)
    nothing = Bounds(None, None, None, 0)
    return [_bounds(c, draws, share) if number in wanted else nothing for number, c in enumerate(reference.curves)]


def check_share(share: float, draws: int) -> None:
    """Refuse a share of errors that so many groups cannot support."""
    if not 0 < share < 1 or draws < draws_needed(1 - share):
        needed = draws_needed(1 - share) if 0 < share < 1 else 1
        raise InputError(
            f"a share of {share:g} is asked for, but {draws} reference groups (or single cases) cannot "
            f"support it: {needed} are needed. Allow a larger share, or learn from more cases."
        )


def _bounds(curves: LossCurves, draws: int, share: float) -> Bounds:
    size = len(THRESHOLDS)
    wrong = first_controlled(read_numbers(curves.wrong, size)[MIDDLE:], draws, share)
    inner = None if wrong is None else float(THRESHOLDS[MIDDLE + wrong])
    if not curves.present:
        return Bounds(None, inner, None, 0)
    missed = first_controlled(read_numbers(curves.missed, size)[MIDDLE::-1], curves.present, share)
    ranked = first_controlled(read_numbers(curves.outranked, size), curves.present, share)
    outer = None if missed is None else float(THRESHOLDS[MIDDLE - missed])
    return Bounds(outer, inner, None if ranked is None else float(THRESHOLDS[ranked]), curves.present)


def nested_masks(calibrator: Calibrator, case: Case, bounds: Sequence[Bounds]) -> NDArray[np.uint8]:
    """Return, for every class and voxel, whether it is outside, in the outer mask, in the mask or in the inner mask.

    A class without an outer threshold has no outer mask beyond its mask, one without an inner threshold no inner mask.
    """
    found = torch.zeros(case.logits.shape, dtype=torch.uint8)
    for slab in score_slabs(calibrator, case):
        probs, mask = _probs(slab)
        levels = torch.zeros_like(probs, dtype=torch.uint8)
        for number, each in enumerate(bounds):
            if each.outer is not None:
                levels[number][probs[number] >= _like(each.outer, probs)] = OUTER
            levels[number][mask == number] = MASK
            if each.inner is not None:
                levels[number][(probs[number] >= _like(each.inner, probs)) & (mask == number)] = INNER
        found[slab.where] = levels.cpu()
    return found.numpy()


@contextmanager
def masks_folder(folder: Path, again: bool, whole: bool) -> Iterator[Path]:
    """Give a folder for masks, which must be new or empty; `again`: masks go into what is there.

    Otherwise, if `whole`, it takes its place at the end: after a kill there are all of the masks, or none.
    """
    remove_leftovers(folder) if again else require_empty(folder)
    if again or not whole:
        yield folder
        return
    with written(folder) as beside:
        beside.mkdir()
        yield beside


def require_empty(folder: Path) -> None:
    """Refuse a folder with anything in it, but for what dead processes left."""
    remove_leftovers(folder)
    if there := entries(folder):
        raise InputError(
            f"{folder} holds {there[0]}, but results would be mixed with it. Name a new folder, or pass overwrite=True."
        )


class MaskWriter:
    """Writes the nested masks of one case after the other, as ``CASE.npy``; picklable, for several processes.

    Args:
        fitted: with its reference.
        cases: as they are opened.
        structures: the classes whose masks are written, in this order along the first axis.
        share: of errors.
        folder: where to; see :func:`masks_folder`.
    """

    def __init__(self, fitted: Fitted, cases: Cases, structures: Sequence[int], share: float, folder: Path) -> None:
        assert fitted.reference is not None
        self._calibrator, self._folder, self._structures = fitted.calibrator, folder, list(structures)
        self._bounds = bounds_of(fitted.reference, share)
        self._cases = cases.with_disagreement()

    def __call__(self, case_id: str) -> Path:
        """Write one case."""
        levels, (path,) = (
            nested_masks(self._calibrator, self._cases.checked(case_id), self._bounds),
            self.places(case_id),
        )
        with written(path) as beside:
            np.save(beside, levels[self._structures])
        return path

    def places(self, case_id: str) -> list[Path]:
        """Return where the masks of a case go."""
        return [self._folder / f"{case_id}.npy"]


def label_sets(
    calibrator: Calibrator, case: Case, bounds: Sequence[Bounds], rule: Literal["prob", "rank"] = "prob"
) -> NDArray[np.bool_]:
    """Return which classes are in the label set of each voxel, ``(classes, *space)``; without a threshold, every one.

    `rule`: "prob" (LAC: classes that are likely enough) or "rank" (APS: the first classes until they are enough).
    """
    found = torch.zeros(case.logits.shape, dtype=torch.bool)
    for slab in score_slabs(calibrator, case):
        probs, mask = _probs(slab)
        sets = torch.nn.functional.one_hot(mask, len(probs)).movedim(-1, 0).bool()
        for number, each in enumerate(bounds):
            limit = each.outer if rule == "prob" else each.rank
            if limit is None:
                sets[number] = True
            elif rule == "prob":
                sets[number] |= probs[number] >= _like(limit, probs)
            else:
                above = torch.where(probs > probs[number], probs, torch.zeros_like(probs)).sum(0) + probs[number]
                sets[number] |= above <= _like(limit, probs)
        found[slab.where] = sets.cpu()
    return found.numpy()


def _probs(slab: Slab) -> tuple[Tensor, Tensor]:
    return torch.softmax(slab.scores[0], dim=0), decided(winner(slab.logits[0], axis=0), slab.scores[0])


def _like(value: float, other: Tensor) -> Tensor:
    """Return a threshold in the type that the sums compared in."""
    return torch.tensor(value, dtype=torch.float64).to(other)
