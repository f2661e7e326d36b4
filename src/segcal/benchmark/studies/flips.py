"""Where the labels lie that a calibrator flips: their distance from the boundary of the label map (Fig. 4).

A voxel flips if another class is strictly above its old winner in the scores. Distances are those of the
boundary-aware calibration error: Euclidean, in voxels, 0 on the boundary (:mod:`segcal.statistics.boundary`). Voxels
are counted in steps of one voxel, those further than the last step together with it; a label map without a boundary has
no distances, and its voxels are counted apart.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from segcal.benchmark.studies.base import Study
from segcal.benchmark.studies.examples import encode_indices, picture_of, slice_of
from segcal.calibrators.base import Calibrator
from segcal.cases.base import Case, Cases
from segcal.cases.parallel import map_cases
from segcal.numerics import compute_dtype, winner
from segcal.report.table import Cell, Column, Group, Row, Table
from segcal.statistics.boundary import BAND_EDGES, find_boundary, squared_distances
from segcal.statistics.table import Table as CountTable
from segcal.statistics.table import total_of
from segcal.types import IGNORED

NAME = "flips"
KINDS = ("harmful", "beneficial", "neutral")
STEPS = 32


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


def run_flips(tasks: Mapping[str, tuple[Cases, Mapping[str, Calibrator]]], workers: int = 1) -> Study:
    """Count and tabulate.

    Args:
        tasks: for each task, test cases and the calibrators to be looked at, by the name of their pipeline.
        workers: how many processes count cases.
    """
    places: dict[str, dict[str, FlipPlaces]] = {}
    examples: dict[str, dict[str, Any]] = {}
    for task, (cases, calibrators) in tasks.items():
        places[task], examples[task] = {}, {}
        for name, calibrator in calibrators.items():
            found = dict(map_cases(cases, partial(count_places, calibrator=calibrator), workers))
            places[task][name] = total_of(found)
            most = max(sorted(found), key=lambda case_id: int(found[case_id].flips.sum()))
            examples[task][name] = example_flips(cases.read(most), calibrator)
    return flip_study(places, examples)


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


def flip_study(
    tasks: Mapping[str, Mapping[str, FlipPlaces]], examples: Mapping[str, Mapping[str, Any]] | None = None
) -> Study:
    """Return the study of places that have been counted: by task and pipeline."""
    data = {
        task: {name: place_curve(places) | {"bands": place_bands(places)} for name, places in found.items()}
        for task, found in tasks.items()
    }
    edges = [*BAND_EDGES, None]
    titles = [f"{low:g} to {high:g}" if high else f"from {low:g}" for low, high in pairwise(edges)]
    columns = (
        Column("flipped", digits=2, scale=100),
        *(Column(title, "share of flips (share of voxels), % at distance", digits=1) for title in titles),
    )
    groups = []
    for task, found in data.items():
        rows = []
        for name, one in found.items():
            cells = [_shares(band) for band in one["bands"]]
            rows.append(Row(name, (Cell(one["flip_rate"]), *cells)))
        groups.append(Group(task, tuple(rows)))
    table = Table(
        "Where flips lie: distance from the label boundary, in voxels",
        "Pipeline",
        columns,
        tuple(groups),
        ("Flips that lay anywhere alike would have the shares of the voxels.",),
    )
    return Study(NAME, {"tasks": data, "examples": dict(examples or {})}, {"figure4_flips": table})


def place_curve(places: FlipPlaces) -> dict[str, Any]:
    """Return voxels and flips at each distance, and the share of voxels that flipped."""
    voxels, flips = int(places.voxels.sum()), int(places.flips.sum())
    return {
        "distance": list(range(places.steps)),
        "voxels": places.voxels[:-1].tolist(),
        **{kind: places.flips[:-1, number].tolist() for number, kind in enumerate(KINDS)},
        "without_boundary": {"voxels": int(places.voxels[-1]), "flips": int(places.flips[-1].sum())},
        "flip_rate": flips / voxels if voxels else None,
    }


def place_bands(places: FlipPlaces) -> list[dict[str, Any]]:
    """Return the share of the voxels and of the flips that lie in each band, and the share of its voxels that flip."""
    band = np.searchsorted(BAND_EDGES, np.arange(places.steps), side="right") - 1
    every = places.flips.sum(axis=1)
    rows = []
    for number, edge in enumerate(BAND_EDGES):
        here = np.flatnonzero(band == number)
        voxels, flips = int(places.voxels[here].sum()), int(every[here].sum())
        rows.append(
            {
                "from": edge,
                "share_of_voxels": voxels / int(places.voxels.sum()) if places.voxels.any() else None,
                "share_of_flips": flips / int(every.sum()) if every.any() else None,
                "flip_rate": flips / voxels if voxels else None,
            }
        )
    return rows


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


@torch.no_grad()
def _predictions(case: Case, calibrator: Calibrator) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the prediction before and after; it stays where no class is strictly above it."""
    logits = case.logits.to(compute_dtype(case.logits.dtype))
    before = winner(logits, axis=0)
    scores = calibrator.scores(logits[None], None if case.image is None else case.image[None])[0]
    stays = scores.gather(0, before[None])[0] >= scores.amax(0)
    return before.numpy(), torch.where(stays, before, winner(scores, axis=0)).numpy()


def _shares(band: Mapping[str, float | None]) -> Cell:
    flips, voxels = band["share_of_flips"], band["share_of_voxels"]
    return Cell(None if flips is None or voxels is None else f"{100 * flips:.1f} ({100 * voxels:.1f})")
