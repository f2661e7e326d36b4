"""Where the calibration error lies: right and wrong predictions, the boundary and the interior (selective scaling).

The layout of that paper's Fig. 2d and Fig. 5: ECE (50 bins) of each test case in each region, as the numbers of a box
plot, before calibration and after; and how much the mean predictive entropy rose, which smoothing must pay for. A
prediction that is wrong has accuracy 0 in every bin, so its ECE is its mean confidence; that of a right one is one
minus it. The boundary is the first band of :mod:`segcal.statistics.boundary`: less than 3 voxels from a change of
label.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from segcal.benchmark.pipelines import Pipeline
from segcal.benchmark.studies.base import Study
from segcal.benchmark.studies.setting import NothingToStudyError, Setting
from segcal.calibrators.base import Calibrator
from segcal.cases.base import Cases
from segcal.evaluation.case_counter import Counter
from segcal.evaluation.stage import Stage
from segcal.metrics import find_metrics
from segcal.report.table import Cell, Column, Group, Row, Table

NAME = "regions"
REGIONS = {
    "all": "ece",
    "right": "ece_correct",
    "wrong": "ece_wrong",
    "boundary": "ece_boundary",
    "interior": "ece_interior",
}
ENTROPY = "entropy"
UNCALIBRATED = "identity"
# The paper's three, its Meta-Cal*, and what this package would take first.
CALIBRATORS = ("identity", "ts", "selective", "meta_cal", "meta_cal_large_t", "lts_ti", "cms_ap")
# Values further from the box than so many of its heights are outliers.
WHISKER = 1.5

# By pipeline and metric, one number a case.
Values = Mapping[str, Mapping[str, Sequence[float | None]]]


def run_regions(setting: Setting) -> Study:
    """Measure the test cases of the first repeat of every task, region by region."""
    found = {}
    for task in setting.tasks:
        pipelines = [each for each in setting.pipelines(task.name, "mean_logits") if _wanted(each)]
        if UNCALIBRATED not in [each.calibrator for each in pipelines]:
            continue
        setting.progress(f"regions of {task.name}")
        calibrators = {each.title: setting.calibrator(task, each) for each in pipelines}
        found[task.name] = measure_regions(setting.some(setting.split(task, "mean_logits").test), calibrators)
    if not found:
        raise NothingToStudyError("no task has uncalibrated mean logits among its pipelines")
    return region_study(found)


def measure_regions(cases: Cases, calibrators: Mapping[str, Calibrator]) -> dict[str, dict[str, list[float | None]]]:
    """Return, for each calibrator and metric, one number a case in the order of the ids; every case is read once."""
    chosen = find_metrics((*REGIONS.values(), ENTROPY))
    counter, stages = Counter(chosen), {name: Stage(chosen) for name in calibrators}
    for case in cases:
        for name, counted in counter.count_each(case, calibrators)[1].items():
            stages[name].add(case.id, counted.tables)
    return {
        name: {metric: [_number(value) for value in stage.column(metric)] for metric in chosen}
        for name, stage in stages.items()
    }


def region_study(tasks: Mapping[str, Values]) -> Study:
    """Return the study of numbers by task, pipeline, metric and case; the first pipeline is the uncalibrated one."""
    data: dict[str, Any] = {}
    groups = []
    for task, pipelines in tasks.items():
        plain = pipelines[next(iter(pipelines))]
        data[task] = {title: _summary(values, plain) for title, values in pipelines.items()}
        groups.append(Group(task, tuple(Row(title, _cells(one)) for title, one in data[task].items())))
    columns = (
        *(Column(region, "ECE", better="lower") for region in REGIONS),
        Column("mean", "entropy"),
        Column("increase", "entropy"),
    )
    note = (
        "Mean over cases [lower quartile, median, upper quartile]; entropy in nats, its increase over the uncalibrated "
        "prediction. Boundary: less than 3 voxels from it."
    )
    table = Table("Calibration error by region", "Pipeline", columns, tuple(groups), (note,), apart=True)
    return Study(NAME, {"tasks": data, "whisker": WHISKER}, {"selective_figure5_regions": table})


def box(values: Sequence[float | None]) -> dict[str, Any]:
    """Return the numbers of a box plot: quartiles, the ends of its whiskers, outliers, mean, and undefined values.

    >>> found = box([1.0, 2.0, 3.0, 4.0, 20.0, None])
    >>> found["median"], found["high"], found["outliers"], found["undefined"]
    (3.0, 4.0, [20.0], 1)
    """
    defined = np.array([value for value in values if value is not None])
    undefined = len(values) - len(defined)
    if not len(defined):
        names = ("mean", "low", "lower_quartile", "median", "upper_quartile", "high", "minimum", "maximum")
        return {**dict.fromkeys(names), "outliers": [], "cases": 0, "undefined": undefined}
    lower, median, upper = (float(q) for q in np.percentile(defined, (25, 50, 75)))
    reach = WHISKER * (upper - lower)
    inside = defined[(defined >= lower - reach) & (defined <= upper + reach)]
    return {
        "mean": float(defined.mean()),
        "low": float(inside.min()),
        "lower_quartile": lower,
        "median": median,
        "upper_quartile": upper,
        "high": float(inside.max()),
        "minimum": float(defined.min()),
        "maximum": float(defined.max()),
        "outliers": sorted(float(v) for v in defined[(defined < lower - reach) | (defined > upper + reach)]),
        "cases": len(defined),
        "undefined": undefined,
    }


def _summary(
    values: Mapping[str, Sequence[float | None]], plain: Mapping[str, Sequence[float | None]]
) -> dict[str, Any]:
    rises = [
        None if before is None or after is None else after - before
        for before, after in zip(plain[ENTROPY], values[ENTROPY], strict=True)
    ]
    regions = {region: box(values[metric]) for region, metric in REGIONS.items()}
    return {"ece": regions, "entropy": box(values[ENTROPY]), "entropy_increase": box(rises)}


def _cells(one: Mapping[str, Any]) -> tuple[Cell, ...]:
    boxes = [*(one["ece"][region] for region in REGIONS), one["entropy"], one["entropy_increase"]]
    return tuple(Cell(b["mean"], b["lower_quartile"], b["upper_quartile"], b["median"]) for b in boxes)


def _wanted(pipeline: Pipeline) -> bool:
    return pipeline.calibrator in CALIBRATORS


def _number(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
