"""Where the labels lie that a calibrator flips: their distance from the boundary of the label map (Fig. 4).

A voxel flips if another class is strictly above its old winner in the scores. Distances are those of the
boundary-aware calibration error: Euclidean, in voxels, 0 on the boundary (:mod:`segcal.statistics.boundary`). For every
pipeline that may flip, the benchmark has counted voxels and flips in bands of distance. For one of them a task, matrix
scaling of the mean logits if it is there, they are counted again in steps of one voxel, and the test case with most
flips is kept as an example.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from segcal.benchmark.counting import FlipBands
from segcal.benchmark.pipelines import Pipeline
from segcal.benchmark.studies.base import Study
from segcal.benchmark.studies.examples import picture_of, slice_of
from segcal.benchmark.studies.setting import NothingToStudyError, Setting
from segcal.benchmark.tasks import Task
from segcal.calibrators.base import Calibrator
from segcal.cases.base import Case
from segcal.numerics import compute_dtype, winner
from segcal.report.pictures import encode_indices
from segcal.report.table import Cell, Column, Group, Row, Table
from segcal.statistics.additive import Table as CountTable
from segcal.statistics.additive import total_of
from segcal.statistics.boundary import BAND_EDGES, find_boundary, squared_distances
from segcal.types import IGNORED

NAME = "flips"
KINDS = ("harmful", "beneficial", "neutral")
STEPS = 32
SHOWN = "ms(mean_logits)"


@dataclass(frozen=True)
class FlipPlaces(CountTable):
    """Voxels and flips by distance; they add up over cases.

    Attributes:
        steps: how many steps of one voxel there are, the last one open; one more entry holds voxels without a distance.
        voxels: ``(steps + 1,)`` int64.
        flips: ``(steps + 1, 3)`` int64: harmful, beneficial, neutral.
    """

    steps: int = field(metadata={"fixed": True})
    voxels: NDArray[np.int64]
    flips: NDArray[np.int64]


def run_flips(setting: Setting) -> Study:
    """Tabulate the flips of a benchmark, and look at one pipeline a task more closely."""
    bands: dict[str, dict[str, FlipBands]] = {}
    closer = {}
    for task in setting.tasks:
        free = {each.title: each for each in setting.pipelines(task.name) if each.preserves is None}
        if not free:
            continue
        bands[task.name] = {title: _counted(setting, task.name, title) for title in free}
        most = max(free, key=lambda title: int(bands[task.name][title].flips.sum()))
        setting.progress(f"flips of {task.name}")
        closer[task.name] = look_closer(setting, task, free.get(SHOWN, free[most]))
    if not bands:
        raise NothingToStudyError("no pipeline may flip a label")
    return flip_study(bands, closer)


def look_closer(setting: Setting, task: Task, pipeline: Pipeline) -> dict[str, Any]:
    """Return flips by distance in steps of one voxel, and an example, from the test cases of the first repeat."""
    calibrator = setting.calibrator(task, pipeline)
    cases = setting.some(setting.split(task, pipeline.pooling).test)
    found = {case.id: count_places(case, calibrator) for case in cases}
    most = max(sorted(found), key=lambda case_id: int(found[case_id].flips.sum()))
    example = example_flips(cases.read(most), calibrator)
    return {"pipeline": pipeline.title, "cases": len(found), "curve": place_curve(total_of(found)), "example": example}


def count_places(case: Case, calibrator: Calibrator) -> FlipPlaces:
    """Count the flips of one case by distance from the boundary."""
    assert case.labels is not None
    labels = case.labels.numpy()
    before, after = _predictions(case, calibrator)
    boundary = find_boundary(labels)
    step = np.full(labels.shape, STEPS)
    if boundary.any():
        step = np.minimum(np.sqrt(squared_distances(boundary)).astype(np.int64), STEPS - 1)
    counts = labels != IGNORED
    flipped = counts & (before != after)
    was_right, is_right = before == labels, after == labels
    apart = (was_right, is_right, ~was_right & ~is_right)
    columns = [np.bincount(step[flipped & kind], minlength=STEPS + 1) for kind in apart]
    return FlipPlaces(STEPS, np.bincount(step[counts], minlength=STEPS + 1), np.stack(columns, axis=1))


def flip_study(tasks: Mapping[str, Mapping[str, FlipBands]], closer: Mapping[str, Any] | None = None) -> Study:
    """Return the study of flips in bands, by task and pipeline, and of what a closer look at one of them found."""
    data = {task: {title: share_bands(counted) for title, counted in found.items()} for task, found in tasks.items()}
    edges = [*BAND_EDGES, None]
    titles = [f"{low:g} to {high:g}" if high else f"from {low:g}" for low, high in pairwise(edges)]
    columns = (
        Column("Flip", digits=2, scale=100),
        *(Column(title, "share of flips (of voxels), % at distance") for title in titles),
    )
    groups = tuple(
        Group(task, tuple(Row(title, _cells(one)) for title, one in found.items())) for task, found in data.items()
    )
    note = "Distances in voxels. Flips that lay anywhere alike would have the shares of the voxels."
    table = Table("Where flips lie: distance from the label boundary", "Pipeline", columns, groups, (note,))
    return Study(NAME, {"tasks": data, "closer": dict(closer or {})}, {"figure4_flips": table})


def share_bands(counted: FlipBands) -> dict[str, Any]:
    """Return the share of voxels that flipped and, for each band, its share of the voxels and of the flips."""
    flips = counted.flips.sum(axis=1)
    voxels, total = int(counted.voxels.sum()), int(flips.sum())
    bands = [
        {
            "from": edge,
            "share_of_voxels": int(counted.voxels[number]) / voxels if voxels else None,
            "share_of_flips": int(flips[number]) / total if total else None,
            "flip_rate": int(flips[number]) / int(counted.voxels[number]) if counted.voxels[number] else None,
        }
        for number, edge in enumerate(BAND_EDGES)
    ]
    kinds = {kind: int(counted.flips[:, number].sum()) for number, kind in enumerate(KINDS)}
    return {"flip_rate": total / voxels if voxels else None, "voxels": voxels, **kinds, "bands": bands}


def place_curve(places: FlipPlaces) -> dict[str, Any]:
    """Return voxels and flips at each distance."""
    return {
        "distance": list(range(places.steps)),
        "voxels": places.voxels[:-1].tolist(),
        **{kind: places.flips[:-1, number].tolist() for number, kind in enumerate(KINDS)},
        "without_boundary": {"voxels": int(places.voxels[-1]), "flips": int(places.flips[-1].sum())},
    }


def example_flips(case: Case, calibrator: Calibrator) -> dict[str, Any]:
    """Return the slice of a case with most flips: image, labels, and which voxels flipped."""
    assert case.labels is not None
    labels = case.labels.numpy()
    before, after = _predictions(case, calibrator)
    flipped = (before != after) & (labels != IGNORED)
    index = slice_of(labels, flipped)
    maps = {"labels": labels, "before": before, "after": after, "flipped": flipped}
    return {
        "case": case.id,
        "flips": int(flipped.sum()),
        "image": picture_of(case, index),
        **{name: encode_indices(values[index].astype(np.int64)) for name, values in maps.items()},
    }


def _counted(setting: Setting, task: str, title: str) -> FlipBands:
    units = setting.results.repeats(task, title)
    return total_of({str(unit.unit.repeat): FlipBands.from_plain(unit.total["flip_bands"]) for unit in units})


@torch.no_grad()
def _predictions(case: Case, calibrator: Calibrator) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the prediction before and after; it stays where no class is strictly above it."""
    logits = case.logits.to(compute_dtype(case.logits.dtype))
    before = winner(logits, axis=0)
    scores = calibrator.scores(logits[None], case.context)[0]
    stays = scores.gather(0, before[None])[0] >= scores.amax(0)
    return before.numpy(), torch.where(stays, before, winner(scores, axis=0)).numpy()


def _cells(one: Mapping[str, Any]) -> tuple[Cell, ...]:
    pairs = [(band["share_of_flips"], band["share_of_voxels"]) for band in one["bands"]]
    texts = [None if None in pair else f"{100 * pair[0]:.1f} ({100 * pair[1]:.1f})" for pair in pairs]
    return (Cell(one["flip_rate"]), *(Cell(text) for text in texts))
