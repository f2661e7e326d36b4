"""Objects of new cases: a probability that each is real, lists with few false ones, and how many are missed."""

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.table import Table

from segcal.arguments import typed
from segcal.cases.base import CaseError
from segcal.cases.parallel import Workers
from segcal.errors import InputError
from segcal.fitting.certificate import Fitted
from segcal.fitting.fit import check_device
from segcal.fitting.object_reference import ObjectReference
from segcal.fitting.reference import HELD_OUT
from segcal.names import class_titles
from segcal.trust.components import CaseObjects
from segcal.trust.conformal import check_level
from segcal.trust.entry import enter, known_objects, walk
from segcal.trust.learn import Finder
from segcal.trust.object_model import StructureModel, features_of, structure_models
from segcal.trust.result import MOST_SHOWN, Printed, number_cell, plain_table, span_cell
from segcal.trust.sums import Floats, one_unit

LEVEL, FDR = 0.9, 0.1
PROMISE = (
    "Of the objects of a structure that are listed in a case, at most {fdr:g} % are false, on average over {draws} "
    "like the labelled ones in which the structure has an object; intervals hold the size of {level:g} % of real "
    "objects. {proof} Nothing is promised for a single case, or for all lists together."
)
PROVED = "This is proved: neither the calibrator nor the model of objects has seen the cases that it rests on."
ABOUT = "Both hold about so and are not proved: {why}."


class ObjectRow(NamedTuple):
    """One object, its number from 1 among those of its structure in the case; None is not known.

    Indices follow the axes of the array as it is read; `box` has the first voxel and the one behind the last. World
    coordinates are millimetres to the right, to the front and upwards (RAS), of centres of voxels; `world_box` has the
    smallest and the largest. `real` and `dice` are what labels say.
    """

    case: str
    structure: str
    object: int
    p_real: float | None
    listed: bool | None
    expected_dice: float | None
    size: float
    size_low: float | None
    size_high: float | None
    unit: str
    voxels: int
    mean_prob: float
    peak_prob: float
    disagreement: float | None
    centroid: list[float]
    box: list[int]
    world: list[float] | None
    world_box: list[float] | None
    real: bool | None
    dice: float | None


class ObjectCaseRow(NamedTuple):
    """One structure of one case; `truths` and `missed` are what labels say."""

    case: str
    structure: str
    objects: int
    expected_real: float | None
    listed: int | None
    expected_missed: float
    missed_at_most: float | None
    truths: int | None
    missed: int | None


class StructureRow(NamedTuple):
    """The basis on which one structure was judged; `listed_from` is None where nothing is listed."""

    structure: str
    model: str
    reference_objects: int
    reference_real: int
    reference_draws: int
    listed_from: float | None


@dataclass(frozen=True)
class Objects(Printed):
    """The objects of some cases.

    Attributes:
        rows: one per object, in the order of the cases.
        cases: one per case and structure.
        structures: one per structure.
        level: of the intervals.
        fdr: the bound of the false share of a case's list.
        measure: by which an object is real, "iou" or "overlap".
        at: the least measure of a real object.
        source: how the labelled cases stand to the fit.
        promise: in words, what is promised.
    """

    command, row = "objects", ObjectRow
    rows: list[ObjectRow]
    cases: list[ObjectCaseRow]
    structures: list[StructureRow]
    level: float
    fdr: float
    measure: str
    at: float
    source: str
    promise: str

    def first(self) -> list[ObjectRow]:
        """Return the rows, what to look at first: where it is least sure whether the object is real, large ones."""
        return sorted(self.rows, key=lambda row: (abs((0.5 if row.p_real is None else row.p_real) - 0.5), -row.voxels))

    def to_plain(self) -> dict[str, object]:
        """Return everything as dicts, lists and numbers."""
        tables = {name: [row._asdict() for row in getattr(self, name)] for name in ("rows", "cases", "structures")}
        return {"schema": 1, "made_by": "segcal objects", **vars(self), **tables}

    def parts(self) -> "list[Table | str]":
        """Return the table that is printed, and what it promises."""
        headings = ("case", "structure", "object", "real", "listed", "size", f"{100 * self.level:g} %", "Dice", "at")
        rows = []
        for row in self.first()[:MOST_SHOWN]:
            cells = [row.case, row.structure, str(row.object), number_cell(row.p_real, ".2f"), yes_no(row.listed)]
            cells += [f"{number_cell(row.size, '.4g')} {row.unit}", span_cell(row.size_low, row.size_high, ".4g")]
            rows.append([*cells, number_cell(row.expected_dice, ".2f"), " ".join(f"{x:.0f}" for x in row.centroid)])
        more = [f"... and {len(self.rows) - MOST_SHOWN} more objects"] if len(self.rows) > MOST_SHOWN else []
        return [plain_table(headings, rows), *more, self.summary(), self.promise]

    def summary(self) -> str:
        """Return the counts as one sentence."""
        real, missed = (sum(x or 0 for x in each) for each in zip(*((r[3], r[5]) for r in self.cases), strict=True))
        return (
            f"{len(self.rows)} objects, {sum(bool(row.listed) for row in self.rows)} listed; about {real:.1f} are real "
            f"and {missed / len({row.case for row in self.cases}):.2f} are missed in a case."
        )


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
    known, reference, opened = enter(fitted, known_objects, cases, declared, ignore_pooling)
    check_level(level)
    if not 0 < fdr < 1:
        raise InputError(f"fdr is {fdr:g}, but a share between 0 and 1 is needed. Use 0.1 for 10 %.")
    models, members = structure_models(reference, level, fdr, proved)
    calibrator = known.calibrator.to(check_device(device))
    finder, found = Finder(calibrator, opened.with_disagreement(), reference.structures, reference.rule), []
    for case_id, one in walk(opened.ids, finder, workers, failed, progress, needed=True):
        if members and np.isnan(one.table[:, 6]).any():
            raise InputError(
                f"case {case_id!r} has no members that could disagree, but the objects were learned from an ensemble. "
                "Name the folders of all members."
            )
        found.append(one)
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


def yes_no(value: bool | None) -> str:
    """Return what is printed of an answer."""
    return "–" if value is None else "yes" if value else "no"


def _judged(
    one: CaseObjects, place: int, structure: int, title: str, model: StructureModel, members: bool, unit: str
) -> tuple[list[ObjectRow], ObjectCaseRow]:
    own = one.table[:, 0] == structure
    table, size, axes = one.table[own], one.voxel if unit == one.unit else 1.0, one.places.shape[1] // 3
    unknown: list[Any] = [None] * len(table)
    chance, dice = (
        unknown if each is None else each(features_of(table, members)).tolist() for each in (model.chance, model.dice)
    )
    least = math.inf if model.least is None else model.least
    listed = unknown if model.least is None or model.chance is None else [each >= least for each in chance]
    rows = []
    for k, (row, spot) in enumerate(zip(table.tolist(), one.places[own], strict=True)):
        _, voxels, mean, peak, _, _, apart, real, right, *_ = row
        wrong = (1 + voxels * (1 - mean)) * model.spread
        low, high = (None, None) if math.isinf(wrong) else (max(voxels - wrong, 1.0) * size, (voxels + wrong) * size)
        world, world_box = _world(one.affine, spot[:axes], spot[axes:])
        said = (None, None) if math.isnan(real) else (bool(real), right)
        rows.append(ObjectRow(
            one.case, title, k + 1, chance[k], listed[k], dice[k], voxels * size, low, high, unit,
            int(voxels), mean, peak, None if math.isnan(apart) else apart,
            spot[:axes].tolist(), spot[axes:].astype(int).tolist(), world, world_box, *said,
        ))  # fmt: skip
    truths, missed = one.structures[place]
    return rows, ObjectCaseRow(
        one.case, title, len(rows), None if model.chance is None else float(np.sum(chance)),
        None if listed is unknown else sum(listed), model.missed,
        None if math.isinf(model.missed_most) else model.missed_most,
        *((None, None) if np.isnan(truths) else (int(truths), int(missed))),
    )  # fmt: skip


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
