"""The calibration error by region: right and wrong predictions, the boundary and the interior (selective scaling).

The layout of that paper's Fig. 2d and Fig. 5: ECE (50 bins) of each test case in each region, as the numbers of a box
plot, before calibration and after; and how much the mean predictive entropy rose, which smoothing must pay for. A
prediction that is wrong has accuracy 0 in every bin, so its ECE is its mean confidence; that of a right one is one
minus it. The boundary is the first band of :mod:`segcal.statistics.boundary`: less than 3 voxels from a change of
label.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from msgspec import Struct

from segcal.calibrators.base import Calibrator
from segcal.cases.base import Cases
from segcal.report.document import TaskSection
from segcal.report.figures import COLOURS, Drawn, new_figure, shorten, styled
from segcal.report.table import Cell, Column, Table
from segcal.studies.setting import NothingToStudyError, Setting, count_stages
from segcal.studies.study import MOST_LINES, Outcome, Study, compared_first, task_groups

# By region, its metric and its title in the figure.
REGIONS = {
    "all": ("ece", "all voxels"),
    "right": ("ece_correct", "right predictions"),
    "wrong": ("ece_wrong", "wrong predictions"),
    "boundary": ("ece_boundary", "near a boundary"),
    "interior": ("ece_interior", "elsewhere"),
}
ENTROPY = "entropy"
UNCALIBRATED = "identity"
# The paper's three, its Meta-Cal*, and what this package would take first.
CALIBRATORS = ("identity", "ts", "selective", "meta_cal", "meta_cal_large_t", "lts_ti", "cms_ap")
# Values further from the box than so many of its heights are outliers.
WHISKER = 1.5

# By metric, one number per case.
Values = Mapping[str, Sequence[float | None]]


class Box(Struct):
    """The numbers of a box plot: mean, quartiles, the ends of its whiskers and of all, outliers, undefined values."""

    mean: float | None = None
    low: float | None = None
    lower_quartile: float | None = None
    median: float | None = None
    upper_quartile: float | None = None
    high: float | None = None
    minimum: float | None = None
    maximum: float | None = None
    outliers: list[float] = []
    cases: int = 0
    undefined: int = 0


class RegionBoxes(Struct):
    """ECE of a pipeline by region, its entropy, and how much that rose over the uncalibrated one."""

    ece: dict[str, Box]
    entropy: Box
    entropy_increase: Box


class RegionsData(Struct):
    """The data of the study, by task and pipeline."""

    tasks: dict[str, dict[str, RegionBoxes]]
    whisker: float


def run_regions(setting: Setting) -> Outcome[RegionsData]:
    """Measure the test cases of the first repeat of every task, region by region."""
    found = {}
    for task in setting.tasks:
        pipelines = [each for each in setting.pipelines(task.name, "mean_logits") if each.calibrator in CALIBRATORS]
        if UNCALIBRATED not in [each.calibrator for each in pipelines]:
            continue
        setting.progress(f"regions of {task.name}")
        calibrators = {each.title: setting.calibrator(task, each) for each in pipelines}
        found[task.name] = measure_regions(setting.some(setting.split(task, "mean_logits").test), calibrators)
    if not found:
        raise NothingToStudyError("no task has uncalibrated mean logits among its pipelines")
    return region_outcome(found)


def measure_regions(cases: Cases, calibrators: Mapping[str, Calibrator]) -> dict[str, dict[str, list[float | None]]]:
    """Return, for each calibrator and metric, one number per case in the order of the ids."""
    metrics = (*(metric for metric, _ in REGIONS.values()), ENTROPY)
    return {
        name: {
            metric: [None if np.isnan(value) else float(value) for value in stage.column(metric)] for metric in metrics
        }
        for name, stage in count_stages(cases, calibrators, metrics).items()
    }


def region_outcome(tasks: Mapping[str, Mapping[str, Values]]) -> Outcome[RegionsData]:
    """Return the outcome of numbers by task, pipeline, metric and case; the first pipeline is the uncalibrated one."""
    data = {}
    for task, pipelines in tasks.items():
        plain = next(iter(pipelines.values()))
        data[task] = {title: _boxes(values, plain) for title, values in pipelines.items()}
    columns = (
        *(Column(region, "ECE", better="lower") for region in REGIONS),
        Column("mean", "entropy"),
        Column("increase", "entropy"),
    )
    note = (
        "Mean over cases [lower quartile, median, upper quartile]; entropy in nats, its increase over the uncalibrated "
        "prediction. Boundary: less than 3 voxels from it."
    )
    table = Table("Calibration error by region", "Pipeline", columns, task_groups(data, _cells), (note,), apart=True)
    return Outcome(RegionsData(data, WHISKER), {"selective_figure5_regions": table})


def box(values: Sequence[float | None]) -> Box:
    """Return the numbers of a box plot.

    >>> found = box([1.0, 2.0, 3.0, 4.0, 20.0, None])
    >>> found.median, found.high, found.outliers, found.undefined
    (3.0, 4.0, [20.0], 1)
    """
    defined = np.array([value for value in values if value is not None])
    undefined = len(values) - len(defined)
    if not len(defined):
        return Box(undefined=undefined)
    lower, median, upper = (float(q) for q in np.percentile(defined, (25, 50, 75)))
    reach = WHISKER * (upper - lower)
    outside = (defined < lower - reach) | (defined > upper + reach)
    low, high = float(defined[~outside].min()), float(defined[~outside].max())
    ends = float(defined.min()), float(defined.max())
    outliers = sorted(defined[outside].tolist())
    return Box(float(defined.mean()), low, lower, median, upper, high, *ends, outliers, len(defined), undefined)


def _boxes(values: Values, plain: Values) -> RegionBoxes:
    rises = [
        None if before is None or after is None else after - before
        for before, after in zip(plain[ENTROPY], values[ENTROPY], strict=True)
    ]
    regions = {region: box(values[metric]) for region, (metric, _) in REGIONS.items()}
    return RegionBoxes(regions, box(values[ENTROPY]), box(rises))


def _cells(one: RegionBoxes) -> Iterator[Cell]:
    for each in (*one.ece.values(), one.entropy, one.entropy_increase):
        yield Cell(each.mean, each.lower_quartile, each.upper_quartile, each.median)


@styled()
def region_figure(pipelines: Mapping[str, RegionBoxes], shown: Sequence[str] | None = None) -> Any:
    """Return one group of boxes per region, one box per pipeline; of the first pipelines if `shown` is None."""
    from matplotlib.patches import Patch

    kept = [title for title in (shown or pipelines) if title in pipelines][:MOST_LINES]
    figure, axes = new_figure(1, 1, 9, 3.6)
    axis = axes[0, 0]
    width = 0.8 / max(len(kept), 1)
    for number, title in enumerate(kept):
        colour = COLOURS[number % 8]
        boxes = [(place, pipelines[title].ece.get(region)) for place, region in enumerate(REGIONS)]
        known = [(place + (number + 0.5) * width - 0.4, one) for place, one in boxes if one and one.median is not None]
        axis.bxp(
            [_percent(one) for _, one in known],
            positions=[place for place, _ in known],
            widths=0.8 * width,
            patch_artist=True,
            boxprops={"facecolor": colour, "alpha": 0.55, "edgecolor": colour},
            medianprops={"color": "black"},
            flierprops={"marker": ".", "markersize": 3, "markerfacecolor": colour, "markeredgecolor": colour},
        )
    axis.set(xticks=range(len(REGIONS)), ylabel="calibration error in %", ylim=(0, None))
    axis.set_xticklabels([title for _, title in REGIONS.values()])
    patches = [Patch(color=COLOURS[k % 8], alpha=0.55, label=shorten(title, 30)) for k, title in enumerate(kept)]
    figure.legend(handles=patches, loc="outside lower center", ncols=4, fontsize=8)
    return figure


def _percent(one: Box) -> dict[str, float | list[float]]:
    names = {"whislo": "low", "q1": "lower_quartile", "med": "median", "q3": "upper_quartile", "whishi": "high"}
    return {key: 100 * getattr(one, name) for key, name in names.items()} | {
        "fliers": [100 * value for value in one.outliers]
    }


def _figures(data: RegionsData, section: TaskSection) -> Iterator[Drawn]:
    task = section.task
    if task in data.tasks:
        text = (
            "One box per pipeline: half of the test cases lie in the box, its line is the middle one. Wrong "
            "predictions should be unsure: there the error is the confidence itself."
        )
        draw = partial(region_figure, data.tasks[task], compared_first(section, data.tasks[task]))
        yield Drawn(f"regions_{task}", task, "Where the calibration error lies", text, draw)


STUDY = Study(
    "ECE of right and wrong predictions, boundary and interior (box plots); entropy increase",
    "uncalibrated mean logits", "reads the test cases of a repeat", True, run_regions, RegionsData, _figures,
)  # fmt: skip
