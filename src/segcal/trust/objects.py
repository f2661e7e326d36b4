"""Which objects of new cases are real: a probability for each, lists with few false ones, and how many are missed."""

import math
import os
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import torch

from segcal.arguments import typed
from segcal.cases import as_cases
from segcal.cases.base import CaseError
from segcal.cases.parallel import Failures, Workers, map_ids
from segcal.errors import InputError
from segcal.evaluation.evaluate import check_match
from segcal.fitting.artifact import to_fitted
from segcal.fitting.certificate import Fitted
from segcal.fitting.fit import check_device
from segcal.fitting.object_reference import ObjectReference
from segcal.fitting.reference import HELD_OUT, calibrator_digest
from segcal.names import class_titles
from segcal.trust.components import CaseObjects
from segcal.trust.conformal import check_level
from segcal.trust.object_learn import Finder
from segcal.trust.object_model import StructureModel, features_of, structure_models
from segcal.trust.object_rows import ObjectCaseRow, ObjectRow, Objects, StructureRow
from segcal.trust.sums import Floats, one_unit

LEVEL, FDR = 0.9, 0.1
PROMISE = (
    "Of the objects of a structure that are listed in a case, at most {fdr:g} % are false, on average over {draws} "
    "like the labelled ones in which the structure has an object; intervals hold the size of {level:g} % of real "
    "objects. {proof} Nothing is promised for a single case, or for all lists together."
)
PROVED = "This is proved: neither the calibrator nor the model of objects has seen the cases that it rests on."
ABOUT = "Both hold about so and are not proved: {why}."


@typed
def objects(
    fitted: Fitted | str | os.PathLike[str],
    cases: Any,
    level: float = LEVEL,
    fdr: float = FDR,
    *,
    proved: bool = False,
    device: str | torch.device | None = None,
    workers: Workers = 1,
    ignore_pooling: bool = False,
    failed: Callable[[CaseError], None] | None = None,
    progress: Callable[[str], None] | None = None,
    **declared: Any,
) -> Objects:
    """List the objects of new cases, each with the probability that it is real; labels are not needed.

    Args:
        fitted: what :func:`segcal.learn_objects` returned, or the folder of ``segcal fit --objects``.
        cases: new cases, or arrays as :func:`segcal.cases.as_cases` takes them; labels, if there are any, are compared.
        level: of the intervals.
        fdr: at most this share of a case's list is false, on average over cases.
        proved: learn the model on half of the labelled groups, and bounds on the others alone.
        device: where to calibrate; the CPU if not given.
        workers: how many processes work on cases.
        ignore_pooling: go on although the calibrator was fitted for another pooling.
        failed: takes the error of a case that is not usable, which is then left out; without it the error is raised.
        progress: called with the id of each case when it is done.
        declared: what is known of arrays, such as `kind`.

    >>> import segcal
    >>> rng = np.random.default_rng(0)
    >>> logits = 3 * rng.normal(size=(24, 2, 9, 7))
    >>> labels = (logits + rng.gumbel(size=logits.shape)).argmax(1)
    >>> fitted = segcal.learn_objects(segcal.fit("ts", logits[:20], labels[:20]), logits[:20], labels[:20])
    >>> objects(fitted, logits[20:]).rows[0].structure
    'class 1'
    """
    known = to_fitted(fitted)
    reference = known_objects(known)
    opened = as_cases(cases, **declared)
    check_match(known, opened, ignore_pooling)
    check_level(level)
    if not 0 < fdr < 1:
        raise InputError(f"fdr is {fdr:g}, but a share between 0 and 1 is needed. Use 0.1 for 10 %.")
    if not len(opened):
        raise InputError("cases is empty, but at least one case is needed. Check the folder.")
    models, members = structure_models(reference, level, fdr, proved)
    finder = Finder(
        known.calibrator.to(check_device(device)), opened.with_disagreement(), reference.structures, reference.rule
    )
    found, failures = [], Failures(failed)
    for case_id, one in map_ids(opened.ids, finder, workers, failures.take):
        if members and np.isnan(one.table[:, 6]).any():
            raise InputError(
                f"case {case_id!r} has no members that could disagree, but the objects were learned from an ensemble. "
                "Name the folders of all members."
            )
        found.append(one)
        if progress is not None:
            progress(case_id)
    if not found:
        raise failures.refuse_all(len(opened))
    every = class_titles(known.class_names, known.calibrator.num_classes)
    named = [(number, every[number], model) for number, model in zip(reference.structures, models, strict=True)]
    unit = one_unit([each.unit for each in found])
    parts = [_judged(one, k, *each, members, unit) for one in found for k, each in enumerate(named)]
    limits = [None if model.least is None or math.isinf(model.least) else model.least for model in models]
    return Objects(
        rows=[row for rows, _ in parts for row in rows],
        cases=[row for _, row in parts],
        structures=[StructureRow(each[1], *each[2][:4], limit) for each, limit in zip(named, limits, strict=True)],
        level=level,
        fdr=fdr,
        measure=reference.rule.measure,
        at=reference.rule.at,
        source=reference.source,
        promise=_promise(reference, level, fdr, proved),
    )


def known_objects(fitted: Fitted) -> ObjectReference:
    """Return what a fitted calibrator remembers of objects, or say how to get it."""
    if not isinstance(fitted, Fitted):
        raise InputError(
            f"fitted is {type(fitted).__name__}, but what fit, choose or load returned is needed. Pass that, not its "
            ".calibrator."
        )
    if fitted.objects is None:
        raise InputError(
            "the calibrator remembers no objects, but new ones are compared with labelled ones. Fit again with segcal "
            "fit --objects, or pass labelled cases to segcal.learn_objects."
        )
    if fitted.objects.calibrator != calibrator_digest(fitted.calibrator):
        raise InputError(
            "the objects belong to another calibrator, but their numbers are those of that one's probabilities. Pass "
            "labelled cases to segcal.learn_objects again."
        )
    return fitted.objects


def _judged(
    one: CaseObjects, place: int, structure: int, title: str, model: StructureModel, members: bool, unit: str
) -> tuple[list[ObjectRow], ObjectCaseRow]:
    own = one.table[:, 0] == structure
    table, size, axes = one.table[own], one.voxel if unit == one.unit else 1.0, one.places.shape[1] // 3
    chance, dice = (None if m is None else m(features_of(table, members)) for m in (model.chance, model.dice))
    listed = None if model.least is None or chance is None else chance >= model.least
    rows = []
    for k, (row, spot) in enumerate(zip(table, one.places[own], strict=True)):
        wrong = float(1 + row[1] * (1 - row[2])) * model.spread
        low, high = (None, None) if math.isinf(wrong) else (max(row[1] - wrong, 1.0) * size, (row[1] + wrong) * size)
        world, world_box = _world(one.affine, spot[:axes], spot[axes:])
        known = None if listed is None else bool(listed[k])
        real, right = (None, None) if np.isnan(row[7]) else (bool(row[7]), float(row[8]))
        rows.append(ObjectRow(
            one.case, title, k + 1, _at(chance, k), known, _at(dice, k), float(row[1]) * size, low, high, unit,
            int(row[1]), float(row[2]), float(row[3]), None if np.isnan(row[6]) else float(row[6]),
            spot[:axes].tolist(), spot[axes:].astype(int).tolist(), world, world_box, real, right,
        ))  # fmt: skip
    truths, missed = one.structures[place]
    return rows, ObjectCaseRow(
        one.case, title, len(rows), None if chance is None else float(chance.sum()),
        None if listed is None else int(listed.sum()), model.missed,
        None if math.isinf(model.missed_most) else model.missed_most,
        *((None, None) if np.isnan(truths) else (int(truths), int(missed))),
    )  # fmt: skip


def _at(values: Floats | None, place: int) -> float | None:
    return None if values is None else float(values[place])


def _world(affine: Floats | None, centre: Floats, box: Floats) -> tuple[list[float] | None, list[float] | None]:
    """Return the centre, and the smallest and the largest coordinates of the voxels of a box, in millimetres."""
    if affine is None:
        return None, None
    axes = len(centre)
    corners = product(*((box[axis], box[axes + axis] - 1) for axis in range(axes)))
    spots = np.array([centre, *corners]) @ affine[:, :-1].T + affine[:, -1]
    return spots[0].tolist(), [*spots[1:].min(0).tolist(), *spots[1:].max(0).tolist()]


def _promise(reference: ObjectReference, level: float, fdr: float, proved: bool) -> str:
    grouped = any(not case.group.startswith("\0") for case in reference.cases)
    draws = "groups (each counts the same)" if grouped else "cases"
    why = "the model of objects was learned on the same cases" if reference.source == HELD_OUT else (
        "the labelled cases had a part in the fit of the calibrator"
    )  # fmt: skip
    proof = PROVED if proved and reference.source == HELD_OUT else ABOUT.format(why=why)
    return PROMISE.format(fdr=100 * fdr, level=100 * level, draws=draws, proof=proof)
