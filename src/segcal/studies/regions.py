"""The calibration error by region: right and wrong predictions, the boundary and the interior (selective scaling).

The layout of that paper's Fig. 2d and Fig. 5: ECE (50 bins) of each test case in each region, as the numbers of a box
plot, before calibration and after; and how much the mean predictive entropy rose, which smoothing must pay for. A
prediction that is wrong has accuracy 0 in every bin, so its ECE is its mean confidence; that of a right one is one
minus it. The boundary is the first band of :mod:`segcal.statistics.boundary`: less than 3 voxels from a change of
label.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from segcal.benchmark.tasks import Task
from segcal.calibrators.base import Calibrator
from segcal.cases.base import Cases
from segcal.report.document import TaskSection
from segcal.report.figures import COLOURS, Drawn, new_figure, shorten, styled
from segcal.report.table import Cell, Column, Table
from segcal.studies.study import Setting, Study, compared_first, count_stages, drawn_of, task_table

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

Floats = NDArray[np.float64]


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
    """By task and pipeline, the boxes."""

    tasks: dict[str, dict[str, RegionBoxes]]
    whisker: float = WHISKER


def _run(setting: Setting) -> RegionsData:
    """Measure the test cases of the first repeat of every task, region by region."""

    def measured(task: Task) -> dict[str, RegionBoxes] | None:
        pipelines = [each for each in setting.pipelines(task.name, "mean_logits") if each.calibrator in CALIBRATORS]
        if UNCALIBRATED not in [each.calibrator for each in pipelines]:
            return None
        setting.progress(f"regions of {task.name}")
        calibrators = {each.title: setting.calibrator(task, each) for each in pipelines}
        return measure_regions(setting.some(setting.split(task, "mean_logits").test), calibrators)

    return RegionsData(setting.each_task(measured, "no task has uncalibrated mean logits among its pipelines"))


def measure_regions(cases: Cases, calibrators: Mapping[str, Calibrator]) -> dict[str, RegionBoxes]:
    """Return the boxes of each calibrator, of which the first is the uncalibrated one."""
    stages = count_stages(cases, calibrators, (*(metric for metric, _ in REGIONS.values()), ENTROPY))
    plain = next(iter(stages.values())).column(ENTROPY)
    found = {}
    for title, stage in stages.items():
        errors = {region: box(stage.column(metric)) for region, (metric, _) in REGIONS.items()}
        entropy = stage.column(ENTROPY)
        found[title] = RegionBoxes(errors, box(entropy), box(entropy - plain))
    return found


def box(values: Floats) -> Box:
    """Return the numbers of a box plot of values, NaN where they are not defined.

    >>> found = box(np.array([1.0, 2.0, 3.0, 4.0, 20.0, np.nan]))
    >>> found.median, found.high, found.outliers, found.undefined
    (3.0, 4.0, [20.0], 1)
    """
    defined = values[~np.isnan(values)]
    undefined = len(values) - len(defined)
    if not len(defined):
        return Box(undefined=undefined)
    lower, median, upper = np.percentile(defined, (25, 50, 75)).tolist()
    reach = WHISKER * (upper - lower)
    outside = (defined < lower - reach) | (defined > upper + reach)
    low, high = float(defined[~outside].min()), float(defined[~outside].max())
    ends = float(defined.min()), float(defined.max())
    outliers = sorted(defined[outside].tolist())
    return Box(float(defined.mean()), low, lower, median, upper, high, *ends, outliers, len(defined), undefined)


def _tables(data: RegionsData) -> dict[str, Table]:
    regions = [Column(region, "ECE", better="lower") for region in REGIONS]
    columns = (*regions, Column("mean", "entropy"), Column("increase", "entropy"))
    note = (
        "Mean over cases [lower quartile, median, upper quartile]; entropy in nats, its increase over the uncalibrated "
        "prediction. Boundary: less than 3 voxels from it."
    )
    table = task_table("Calibration error by region", columns, data.tasks, _cells, note, apart=True)
    return {"selective_figure5_regions": table}


def _cells(one: RegionBoxes) -> Iterator[Cell]:
    for each in (*one.ece.values(), one.entropy, one.entropy_increase):
        yield Cell(each.mean, each.lower_quartile, each.upper_quartile, each.median)


@styled()
def _figure(pipelines: Mapping[str, RegionBoxes]) -> Any:
    """Return one group of boxes per region, one box per pipeline."""
    from matplotlib.patches import Patch

    figure, axes = new_figure(1, 1, 9, 3.6)
    axis, width = axes[0, 0], 0.8 / max(len(pipelines), 1)
    for number, own in enumerate(pipelines.values()):
        colour = COLOURS[number % 8]
        boxes = [(place, own.ece.get(region)) for place, region in enumerate(REGIONS)]
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
    patches = [Patch(color=COLOURS[k % 8], alpha=0.55, label=shorten(title, 30)) for k, title in enumerate(pipelines)]
    figure.legend(handles=patches, loc="outside lower center", ncols=4, fontsize=8)
    return figure


def _percent(one: Box) -> dict[str, float | list[float]]:
    names = {"whislo": "low", "q1": "lower_quartile", "med": "median", "q3": "upper_quartile", "whishi": "high"}
    fliers = [100 * value for value in one.outliers]
    return {key: 100 * getattr(one, name) for key, name in names.items()} | {"fliers": fliers}


def _figures(data: RegionsData, section: TaskSection) -> Iterator[Drawn]:
    if found := data.tasks.get(section.task):
        text = (
            "One box per pipeline: half of the test cases lie in the box, its line is the middle one. Wrong "
            "predictions should be unsure: there the error is the confidence itself."
        )
        shown = compared_first(section, found)
        yield drawn_of(section, "regions", "Where the calibration error lies", text, _figure, shown)


STUDY = Study(
    "ECE of right and wrong predictions, boundary and interior (box plots); entropy increase",
    "uncalibrated mean logits", "reads the test cases of a repeat", True,
    _run, RegionsData, _tables, _figures,
)  # fmt: skip
