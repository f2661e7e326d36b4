r"""How much the offset of the pooled logits varies within a case (Tables 3 and 5, Fig. 3).

For each case, :math:`\mathrm{Std}_v F(\bar z(v))` with the free energy :math:`F(z) = \log \sum_c e^{z_c}` of the mean
logits of the first M members. A softmax does not see it; a calibrator that is not translation-invariant does. Voxels
that do not count (ignored, outside the field of view) are left out.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from segcal.benchmark.studies.base import Study
from segcal.benchmark.studies.examples import picture_of, slice_of
from segcal.benchmark.studies.setting import NothingToStudyError, Setting
from segcal.cases.base import Cases
from segcal.evaluation.evaluate import evaluate
from segcal.numerics import free_energy
from segcal.report.pictures import encode_indices, encode_values
from segcal.report.table import Cell, Column, Group, Row, Table, quartiles
from segcal.types import IGNORED

NAME = "offsets"


def run_offsets(setting: Setting) -> Study:
    """Measure the tasks of a benchmark with their first 1, 2, ... members."""
    found: dict[str, dict[int, dict[str, float | None]]] = {}
    examples = {}
    for task in setting.tasks:
        if not setting.open(task, "mean_logits").cases.has_offset:
            continue
        most = task.members if isinstance(task.members, int) else len(task.members)
        found[task.name] = {}
        for size in range(1, most + 1):
            setting.progress(f"offsets of {task.name}, {size} of {most} members")
            cases = setting.some(setting.open(task, "mean_logits", size).cases)
            found[task.name][size] = measure_offsets(cases)
        examples[task.name] = example_map(cases)
    if not found:
        raise NothingToStudyError("no task has logits with their offset")
    return offset_study(found, examples)


def measure_offsets(cases: Cases) -> dict[str, float | None]:
    """Return the spread of the free energy of each case."""
    result = evaluate(cases, metrics=["free_energy_std"], replicates=1)
    return {row["case"]: row["free_energy_std"] for row in result.rows}


def offset_study(
    tasks: Mapping[str, Mapping[int, Mapping[str, float | None]]], examples: Mapping[str, Any] | None = None
) -> Study:
    """Return the study of spreads that have been measured: by task, number of members, and case."""
    sizes = sorted({size for found in tasks.values() for size in found})
    rows = []
    for task, found in tasks.items():
        cells = [quartiles(list(found[size].values())) if size in found else Cell(None) for size in sizes]
        rows.append(Row(task, (Cell(float(len(next(iter(found.values()))))), *cells)))
    table = Table(
        "Spatial variability of the pooled logits' offset, by ensemble size",
        "Dataset",
        (Column("n", digits=0), *(Column(f"M = {size}", digits=2) for size in sizes)),
        (Group("", tuple(rows)),),
        ("Mean over cases of the standard deviation of the free energy over voxels [lower quartile, median, upper].",),
    )
    data = {
        "tasks": {task: {str(size): dict(values) for size, values in found.items()} for task, found in tasks.items()},
        "examples": dict(examples or {}),
    }
    return Study(NAME, data, {"table5_offsets": table})


def example_map(cases: Cases) -> dict[str, Any]:
    """Return the map of the free energy of the first case, with its labels and image (Fig. 3)."""
    case = cases.read(cases.ids[0])
    assert case.labels is not None
    labels = case.labels.numpy()
    energy = free_energy(case.logits, axis=0).numpy()
    counts = labels != IGNORED
    index = slice_of(labels, labels > 0)
    return {
        "case": case.id,
        "free_energy": encode_values(np.where(counts, energy, energy[counts].min() if counts.any() else 0.0)[index]),
        "labels": encode_indices(labels[index]),
        "image": picture_of(case, index),
    }
