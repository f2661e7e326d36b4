"""Labels that a calibrator flips: their distance from the boundary of the label map (Fig. 4).

A voxel flips if another class is strictly above its old winner in the scores. Distances are those of the
boundary-aware calibration error: Euclidean, in voxels, 0 on the boundary (:mod:`segcal.statistics.boundary`). For every
pipeline that may flip, the benchmark has counted voxels and flips in bands of distance. For one of them per task
(matrix scaling of the mean logits if it is there), they are counted again in steps of one voxel. The test case with
most flips is kept as an example.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec import field as json_field
from numpy.typing import NDArray

from segcal.benchmark.protocol import Pipeline
from segcal.benchmark.results import FlipBands, total_flips
from segcal.benchmark.tasks import Task
from segcal.calibrators.base import Calibrator
from segcal.cases.base import Case
from segcal.evaluation.slabs import calibrated_scores
from segcal.kernels.distance_numba import squared_distances
from segcal.numerics import decided, winner
from segcal.report.document import TaskSection
from segcal.report.figures import COLOURS, Drawn, new_figure, shorten, show_classes, show_image, styled
from segcal.report.images import Encoded, decode_map, encode_indices, image_of, slice_of
from segcal.report.table import Cell, Column, Table
from segcal.statistics.additive import total_of
from segcal.statistics.boundary import BAND_EDGES, find_boundary
from segcal.studies.study import Setting, Study, both, drawn_of, per_task
from segcal.types import IGNORED

KINDS = {"harmful": "right to wrong", "beneficial": "wrong to right", "neutral": "wrong to wrong"}
STEPS = 32
SHOWN = "ms(mean_logits)"


class FlipBand(Struct):
    """A band of distance: its share of the voxels and of the flips, and the share of its voxels that flipped."""

    edge: float = json_field(name="from")
    share_of_voxels: float | None
    share_of_flips: float | None
    flip_rate: float | None


class FlipShares(Struct):
    """Flips of a pipeline in all test cases."""

    flip_rate: float | None
    voxels: int
    harmful: int
    beneficial: int
    neutral: int
    bands: list[FlipBand]


class FlipCurve(Struct):
    """Voxels and flips at each distance."""

    distance: list[int]
    voxels: list[int]
    harmful: list[int]
    beneficial: list[int]
    neutral: list[int]
    without_boundary: dict[str, int]


class FlipExample(Struct):
    """The slice of a case with most flips: image, labels, predictions, and which voxels flipped."""

    case: str
    flips: int
    image: Encoded | None
    labels: Encoded
    before: Encoded
    after: Encoded
    flipped: Encoded


class CloserLook(Struct):
    """One pipeline on the test cases of the first repeat, in steps of one voxel."""

    pipeline: str
    cases: int
    curve: FlipCurve
    example: FlipExample


class FlipsData(Struct):
    """By task and pipeline the shares, and by task a closer look."""

    tasks: dict[str, dict[str, FlipShares]]
    closer: dict[str, CloserLook] = {}


def _find(setting: Setting, task: Task) -> tuple[dict[str, FlipShares], CloserLook] | None:
    """Share out the flips of a task, and look at one pipeline more closely."""
    free = {each.title: each for each in setting.pipelines(task.name) if each.preserves is None}
    if not free:
        return None
    own = {title: share_bands(total_flips(setting.results.repeats(task.name, title))) for title in free}
    most = max(own, key=lambda title: sum(getattr(own[title], kind) for kind in KINDS))
    return own, _look_closer(setting, task, free.get(SHOWN, free[most]))


def _look_closer(setting: Setting, task: Task, pipeline: Pipeline) -> CloserLook:
    """Return flips by distance in steps of one voxel, and an example, from the test cases of the first repeat."""
    calibrator, cases = setting.calibrator(task, pipeline), setting.some_tested(task, pipeline.pooling)
    found = {case.id: count_places(case, calibrator) for case in cases}
    most = max(sorted(found), key=lambda case_id: int(found[case_id].flips.sum()))
    example = example_flips(cases.read(most), calibrator)
    return CloserLook(pipeline.title, len(found), place_curve(total_of(found)), example)


def count_places(case: Case, calibrator: Calibrator) -> FlipBands:
    """Return voxels and flips of one case in steps of one voxel, the last one open; one more has no distance."""
    labels, before, after = _maps(case, calibrator)
    boundary = find_boundary(labels)
    step = np.full(labels.shape, STEPS)
    if boundary.any():
        step = np.minimum(np.sqrt(squared_distances(boundary)).astype(np.int64), STEPS - 1)
    return FlipBands.of(step, STEPS + 1, labels, before, after)


def share_bands(counted: FlipBands) -> FlipShares:
    """Return the share of voxels that flipped and, for each band, its share of the voxels and of the flips."""

    def share(part: int, whole: int) -> float | None:
        return int(part) / int(whole) if whole else None

    flips = counted.flips.sum(axis=1)
    voxels, total = int(counted.voxels.sum()), int(flips.sum())
    bands = [
        FlipBand(edge, share(own, voxels), share(flipped, total), share(flipped, own))
        for edge, own, flipped in zip(BAND_EDGES, counted.voxels, flips, strict=False)
    ]
    harmful, beneficial, neutral = counted.flips.sum(axis=0).tolist()
    return FlipShares(share(total, voxels), voxels, harmful, beneficial, neutral, bands)


def place_curve(counted: FlipBands) -> FlipCurve:
    """Return voxels and flips at each distance, from the counts of :func:`count_places`."""
    harmful, beneficial, neutral = counted.flips[:-1].T.tolist()
    without = {"voxels": int(counted.voxels[-1]), "flips": int(counted.flips[-1].sum())}
    return FlipCurve(list(range(STEPS)), counted.voxels[:-1].tolist(), harmful, beneficial, neutral, without)


def example_flips(case: Case, calibrator: Calibrator) -> FlipExample:
    """Return the slice of a case with most flips."""
    labels, before, after = _maps(case, calibrator)
    flipped = (before != after) & (labels != IGNORED)
    index = slice_of(labels, flipped)
    maps = [encode_indices(values[index].astype(np.int64)) for values in (labels, before, after, flipped)]
    return FlipExample(case.id, int(flipped.sum()), image_of(case, index), *maps)


def _maps(case: Case, calibrator: Calibrator) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return labels, and the prediction before and after."""
    assert case.labels is not None
    scores = calibrated_scores(calibrator, case)
    before = winner(case.logits.to(scores.dtype), axis=0)
    return case.labels.numpy(), before.numpy(), decided(before, scores).numpy()


def _tables(data: FlipsData) -> dict[str, Table]:
    edges = [f"{low:g} to {high:g}" if high else f"from {low:g}" for low, high in pairwise([*BAND_EDGES, None])]
    bands = [Column(edge, "share of flips (of voxels), % at distance") for edge in edges]
    note = "Distances in voxels. Flips that lay anywhere alike would have the shares of the voxels."
    title, columns = "Where flips lie: distance from the label boundary", (Column("Flip", "", 2, 100), *bands)
    return {"figure4_flips": Table.of(title, columns, data.tasks, _cells, note)}


def _cells(one: FlipShares) -> Iterator[Cell]:
    yield Cell(one.flip_rate)
    for band in one.bands:
        flips, voxels = band.share_of_flips, band.share_of_voxels
        yield Cell(None if flips is None or voxels is None else f"{100 * flips:.1f} ({100 * voxels:.1f})")


@styled()
def _figure(found: CloserLook, background: bool = True) -> Any:
    """Return input, truth and flipped voxels of one case, and flips by distance from the boundary of the truth."""
    example, curve = found.example, found.curve
    figure, axes = new_figure(1, 4, 12.5, 3.1, width_ratios=[1, 1, 1, 1.25])
    flipped = decode_map(example.flipped) == 1
    titles = (shorten(example.case, 26), "truth", f"{example.flips:,} voxels that changed their class")
    for axis, title in zip(axes[0], titles, strict=False):
        show_image(axis, example.image, flipped.shape)
        axis.set_title(title)
    show_classes(axes[0, 1], example.labels, background, 0.55)
    layer = np.zeros((*flipped.shape, 4))
    layer[flipped] = (0.835, 0.369, 0.0, 1.0)
    axes[0, 2].imshow(layer)
    voxels = np.maximum(np.array(curve.voxels, float), 1)
    bottom = np.zeros(len(voxels))
    axis = axes[0, 3]
    for colour, (kind, label) in zip((0, 1, 6), KINDS.items(), strict=True):
        share = 100 * np.array(getattr(curve, kind), float) / voxels
        axis.bar(curve.distance, share, 0.9, bottom=bottom, color=COLOURS[colour], label=label)
        bottom += share
    title = f"{shorten(found.pipeline, 30)}, all cases"
    axis.set(title=title, xlabel="voxels from the boundary", ylabel="% of voxels changed")
    axis.legend(fontsize=8)
    return figure


def _figures(data: FlipsData, section: TaskSection) -> Iterator[Drawn]:
    if found := data.closer.get(section.task):
        title = "What a calibrator that does not keep the mask would change"
        text = (
            f"{found.pipeline}, in the test case with most changes, and by distance from the boundary in "
            f"{found.cases} test cases."
        )
        yield drawn_of(section, "flips", title, text, _figure, found, section.background)


STUDY = Study(
    "Fig. 4: where flips lie", "a pipeline that may flip", "reads the test cases of a repeat", True,
    per_task(_find, lambda found: FlipsData(*both(found)), "no pipeline may flip a label"),
    FlipsData, _tables, _figures,
)  # fmt: skip
