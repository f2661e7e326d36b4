r"""Variability of the pooled logits' offset within a case (Tables 3 and 5, Fig. 3).

For each case, :math:`\mathrm{Std}_v F(\bar z(v))` with the free energy :math:`F(z) = \log \sum_c e^{z_c}` of the mean
logits of the first M members. A softmax does not see it; a calibrator that is not translation-invariant does. Voxels
that do not count (ignored, outside the field of view) are left out.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from msgspec import Struct

from segcal.benchmark.tasks import Task
from segcal.cases.base import Cases
from segcal.evaluation.evaluate import evaluate
from segcal.numerics import free_energy
from segcal.report.document import TaskSection
from segcal.report.figures import CONFIDENCE_MAP, Drawn, new_figure, shorten, show_image, styled
from segcal.report.images import Encoded, decode_map, encode_indices, encode_values, image_of, slice_of
from segcal.report.table import Cell, Column, Table, quartiles
from segcal.studies.study import Setting, Study, both, drawn_of, per_task
from segcal.types import IGNORED

# By number of members and case, the spread.
Spreads = dict[str, dict[str, float | None]]


class EnergyExample(Struct):
    """A slice of one case: the free energy of its logits, its labels and its image."""

    case: str
    free_energy: Encoded
    labels: Encoded
    image: Encoded | None = None


class OffsetsData(Struct):
    """By task, the spreads and an example."""

    tasks: dict[str, Spreads]
    examples: dict[str, EnergyExample] = {}


def _measure(setting: Setting, task: Task) -> tuple[Spreads, EnergyExample] | None:
    """Measure a task with its first 1, 2, ... members."""
    if not setting.protocol.open(task, "mean_logits").cases.has_offset:
        return None
    found = {}
    for size, cases in setting.by_members(task):
        rows = evaluate(cases, metrics=["free_energy_std"], replicates=1).rows
        found[str(size)] = {row["case"]: row["free_energy_std"] for row in rows}
    return found, example_map(cases)


def example_map(cases: Cases) -> EnergyExample:
    """Return the map of the free energy of the first case, with its labels and image (Fig. 3)."""
    case = cases.read(cases.ids[0])
    assert case.labels is not None
    labels = case.labels.numpy()
    energy = free_energy(case.logits, axis=0).numpy()
    counts = labels != IGNORED
    index = slice_of(labels, labels > 0)
    shown = np.where(counts, energy, energy[counts].min() if counts.any() else 0.0)[index]
    return EnergyExample(case.id, encode_values(shown), encode_indices(labels[index]), image_of(case, index))


def offset_tables(data: OffsetsData) -> dict[str, Table]:
    """Return Table 5."""
    sizes = sorted({size for found in data.tasks.values() for size in found}, key=int)
    columns = (Column("n", digits=0), *(Column(f"M = {size}", digits=2) for size in sizes))

    def cells(found: Spreads) -> Iterator[Cell]:
        yield Cell(float(len(next(iter(found.values())))))
        yield from (quartiles(list(found.get(size, {}).values())) for size in sizes)

    title = "Spatial variability of the pooled logits' offset, by ensemble size"
    note = "Mean over cases of the standard deviation of the free energy over voxels [lower quartile, median, upper]."
    return {"table5_offsets": Table.of(title, columns, {"": data.tasks}, cells, note, first="Dataset")}


@styled()
def _figure(task: str, one: EnergyExample) -> Any:
    """Return the image and the map of one case, with its scale beside it (Fig. 1b, 3)."""
    figure, axes = new_figure(1, 2, 7.6, 2.9)
    left, right = axes[0]
    values = decode_map(one.free_energy)
    show_image(left, one.image, values.shape)
    left.set_title(f"{shorten(task, 20)}: {shorten(one.case, 20)}")
    drawn = right.imshow(values, cmap=CONFIDENCE_MAP)
    right.set_axis_off()
    figure.colorbar(drawn, ax=right, shrink=0.8, label="free energy in nats")
    return figure


def _figures(data: OffsetsData, section: TaskSection) -> Iterator[Drawn]:
    if found := data.examples.get(section.task):
        text = (
            "The level of the raw scores varies over the image, although the network's own probabilities do not see "
            "it. Calibrators that see it can be misled; those that ignore a shift of all scores cannot."
        )
        yield drawn_of(section, "energy", "Free energy of the raw scores", text, _figure, section.task, found)


STUDY = Study(
    "Tables 3 and 5, Fig. 3: spread of the offset by ensemble size", "logits",
    "reads every case once for each ensemble size", True,
    per_task(_measure, lambda found: OffsetsData(*both(found)), "no task has logits with their offset"),
    OffsetsData, offset_tables, _figures,
)  # fmt: skip
