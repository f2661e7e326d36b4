"""Two figures of selective scaling: the calibration error by region, and by the share of mispredictions found.

*Regions* (its Fig. 2d and 5): ECE (50 bins) of each test case in each region, as the numbers of a box plot, before
calibration and after. Beside it is the rise of the mean predictive entropy, the price of smoothing. A prediction that
is wrong has accuracy 0 in every bin, so its ECE is its mean confidence. That of a right one is one minus it. The
boundary is the first band of :mod:`segcal.statistics.boundary`: less than 3 voxels from a change of label.

*Detection* (its Fig. 4) is the worth of a better selector. An oracle flags a random share of the mispredicted voxels of
a case, and no right ones. Flagged voxels get a large temperature, the others stay as a calibrator leaves them. From 0 %
to 100 % each step flags what the step before did and more, so that a curve is smooth. The ends are the calibrator alone
and the best that selective scaling can do. Beside the curves stands the selector that was learned: its recall and its
precision on the same voxels, and the ECE it gave.
"""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from msgspec import Struct
from numpy.typing import NDArray
from torch import Tensor

from segcal.benchmark.tasks import Task
from segcal.calibrators.base import Calibrator
from segcal.calibrators.selective import Selective
from segcal.calibrators.tie_break import with_lead
from segcal.cases.base import Case, Cases
from segcal.evaluation.slabs import calibrated_scores
from segcal.metrics.reliability import expected_calibration_error
from segcal.numerics import compute_dtype, winner
from segcal.report.document import TaskSection
from segcal.report.figures import COLOURS, Drawn, line_style, new_figure, shorten, styled
from segcal.report.table import Cell, Column, Table
from segcal.statistics.case import count_logits
from segcal.studies.study import Setting, Study, compared_first, count_stages, drawn_of, per_task
from segcal.types import IGNORED

# By region, its metric and its title in the figure.
REGION_METRICS = {
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
RATES = tuple(rate / 10 for rate in range(11))
TEMPERATURE = 1e10
BINS = 50
# Calibrators that an oracle is put on top of.
BASES = ("identity", "ts", "cms_ap")
# Voxels that a selector sees at a time.
STEP = 1 << 20


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


def _measure_task(setting: Setting, task: Task) -> dict[str, RegionBoxes] | None:
    """Measure test cases of the first repeat, region by region."""
    pipelines = [each for each in setting.pipelines(task.name, "mean_logits") if each.calibrator in CALIBRATORS]
    if UNCALIBRATED not in [each.calibrator for each in pipelines]:
        return None
    return measure_regions(
        setting.some_tested(task), {each.title: setting.calibrator(task, each) for each in pipelines}
    )


def measure_regions(cases: Cases, calibrators: Mapping[str, Calibrator]) -> dict[str, RegionBoxes]:
    """Return the boxes of each calibrator, of which the first is the uncalibrated one."""
    stages = count_stages(cases, calibrators, (*(metric for metric, _ in REGION_METRICS.values()), ENTROPY))
    plain = next(iter(stages.values())).column(ENTROPY)
    found = {}
    for title, stage in stages.items():
        errors = {region: box(stage.column(metric)) for region, (metric, _) in REGION_METRICS.items()}
        entropy = stage.column(ENTROPY)
        found[title] = RegionBoxes(errors, box(entropy), box(entropy - plain))
    return found


def box(values: NDArray[np.float64]) -> Box:
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


def _region_tables(data: RegionsData) -> dict[str, Table]:
    regions = [Column(region, "ECE", better="lower") for region in REGION_METRICS]
    columns = (*regions, Column("mean", "entropy"), Column("increase", "entropy"))
    note = (
        "Mean over cases [lower quartile, median, upper quartile]; entropy in nats, its increase over the uncalibrated "
        "prediction. Boundary: less than 3 voxels from it."
    )
    table = Table.of("Calibration error by region", columns, data.tasks, _region_cells, note, apart=True)
    return {"selective_figure5_regions": table}


def _region_cells(one: RegionBoxes) -> Iterator[Cell]:
    for each in (*one.ece.values(), one.entropy, one.entropy_increase):
        yield Cell(each.mean, each.lower_quartile, each.upper_quartile, each.median)


@styled()
def _region_figure(pipelines: Mapping[str, RegionBoxes]) -> Any:
    """Return one group of boxes per region, one box per pipeline."""
    from matplotlib.patches import Patch

    figure, axes = new_figure(1, 1, 9, 3.6)
    axis, width = axes[0, 0], 0.8 / max(len(pipelines), 1)
    for number, own in enumerate(pipelines.values()):
        colour = COLOURS[number % 8]
        boxes = [(place, own.ece.get(region)) for place, region in enumerate(REGION_METRICS)]
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
    axis.set(xticks=range(len(REGION_METRICS)), ylabel="calibration error in %", ylim=(0, None))
    axis.set_xticklabels([title for _, title in REGION_METRICS.values()])
    patches = [Patch(color=COLOURS[k % 8], alpha=0.55, label=shorten(title, 30)) for k, title in enumerate(pipelines)]
    figure.legend(handles=patches, loc="outside lower center", ncols=4, fontsize=8)
    return figure


def _percent(one: Box) -> dict[str, float | list[float]]:
    names = {"whislo": "low", "q1": "lower_quartile", "med": "median", "q3": "upper_quartile", "whishi": "high"}
    fliers = [100 * value for value in one.outliers]
    return {key: 100 * getattr(one, name) for key, name in names.items()} | {"fliers": fliers}


def _region_figures(data: RegionsData, section: TaskSection) -> Iterator[Drawn]:
    if found := data.tasks.get(section.task):
        text = (
            "One box per pipeline: half of the test cases lie in the box, its line is the middle one. Wrong "
            "predictions should be uncertain: there the error is the confidence itself."
        )
        shown = compared_first(section, found)
        yield drawn_of(section, "regions", "Where the calibration error lies", text, _region_figure, shown)


REGIONS = Study(
    "ECE of right and wrong predictions, boundary and interior (box plots); entropy increase",
    "uncalibrated mean logits", "reads the test cases of a repeat", True,
    per_task(_measure_task, RegionsData, "no task has uncalibrated mean logits among its pipelines"),
    RegionsData, _region_tables, _region_figures,
)  # fmt: skip


class LearnedSelector(Struct):
    """A learned selector on test cases: shares of the mispredictions, mean ECE, and voxels; None is undefined."""

    recall: float | None
    precision: float | None
    ece: float | None
    mispredicted: int
    flagged: int


class DetectionTask(Struct):
    """The mean ECE of each calibrator at each rate, and the learned selectors by pipeline."""

    oracle: dict[str, list[float]]
    learned: dict[str, LearnedSelector]


class DetectionData(Struct):
    """The rates of detection, and by task the curves."""

    rates: list[float]
    tasks: dict[str, DetectionTask]


def _detect(setting: Setting, task: Task) -> DetectionTask | None:
    """Draw the oracle's curves of a task, and place its learned selectors beside them."""
    pipelines = setting.pipelines(task.name, "mean_logits")
    bases = [each for each in pipelines if each.calibrator in BASES and not each.options]
    cases = setting.some_tested(task)
    if not bases or cases.raters is not None:  # an oracle knows one label
        return None
    oracle = oracle_curves(cases, {each.title: setting.calibrator(task, each) for each in bases})
    selective = [each for each in pipelines if each.calibrator == "selective"]
    return DetectionTask(
        oracle, {each.title: judge_selector(cases, setting.calibrator(task, each)) for each in selective}
    )


def oracle_curves(cases: Cases, calibrators: Mapping[str, Calibrator], seed: int = 0) -> dict[str, list[float]]:
    """Return, for each calibrator, the mean ECE of the cases at each detection rate."""
    sums = {title: np.zeros(len(RATES)) for title in calibrators}
    for case in cases:
        for title, calibrator in calibrators.items():
            sums[title] += _oracle_errors(case, calibrator, seed)
    return {title: (total / len(cases)).tolist() for title, total in sums.items()}


@torch.no_grad()
def _oracle_errors(case: Case, calibrator: Calibrator, seed: int) -> list[float]:
    """Return the ECE of one case at each detection rate; the seed decides which mispredictions are flagged."""
    labels, scores = _counted(case, calibrated_scores(calibrator, case))
    first = winner(scores, axis=0)
    wrong = (first != labels).nonzero()[:, 0].numpy()
    order = np.random.default_rng([seed, zlib.crc32(case.id.encode())]).permutation(wrong)
    gaps = scores - scores.amax(0)
    smoothed = with_lead((gaps / TEMPERATURE)[None], first[None])[0]
    errors = []
    for rate in RATES:
        flagged = torch.zeros(len(labels), dtype=torch.bool)
        flagged[torch.from_numpy(order[: round(rate * len(order))])] = True
        errors.append(_error(torch.where(flagged, smoothed, gaps), labels))
    return errors


@torch.no_grad()
def judge_selector(cases: Cases, calibrator: Calibrator) -> LearnedSelector:
    """Return what a learned selector finds in cases, and their mean ECE after selective scaling."""
    assert isinstance(calibrator, Selective)
    mispredicted = flagged = found = 0
    errors = []
    for case in cases:
        labels, logits = _counted(case, case.logits.to(compute_dtype(case.logits.dtype)))
        for truth, part in zip(labels.split(STEP), logits.split(STEP, dim=1), strict=True):
            seen = calibrator.parts(part[None])[0]
            marked, wrong = calibrator.selector(seen)[0] > 0, winner(seen)[0] != truth
            mispredicted += int(wrong.sum())
            flagged += int(marked.sum())
            found += int((wrong & marked).sum())
        errors.append(_error(*reversed(_counted(case, calibrated_scores(calibrator, case)))))
    recall, precision = (found / whole if whole else None for whole in (mispredicted, flagged))
    return LearnedSelector(recall, precision, float(np.mean(errors)) if errors else None, mispredicted, flagged)


def _counted(case: Case, scores: Tensor) -> tuple[Tensor, Tensor]:
    """Return the labels of the voxels that count, and their scores ``(C, n)``."""
    assert case.labels is not None
    counts = case.labels.reshape(-1) != IGNORED
    return case.labels.reshape(-1)[counts], scores.reshape(len(scores), -1)[:, counts]


def _error(scores: Tensor, labels: Tensor) -> float:
    tables = count_logits(scores, labels, bins=(BINS,), class_bins=0).tables
    return expected_calibration_error(tables.reliability[BINS]["all"])


def _detection_tables(data: DetectionData) -> dict[str, Table]:
    """Return the table: of an oracle every second rate, of a learned selector its three numbers."""
    shown = [Column(f"{100 * rate:.0f} %", "ECE with mispredictions found") for rate in data.rates[::2]]
    learned = [Column("recall", "learned", 2), Column("precision", "learned", 2), Column("ECE", "learned")]
    rows: dict[str, dict[str, list[float | None]]] = {}
    for task, one in data.tasks.items():
        rows[task] = {title: [*errors[::2], None, None, None] for title, errors in one.oracle.items()}
        for title, own in one.learned.items():
            rows[task][title] = [*(None for _ in shown), own.recall, own.precision, own.ece]
    flagged = f"flagged voxels get T = {TEMPERATURE:.0e}."
    note = f"An oracle flags a share of the mispredictions and no right voxel; {flagged}"
    title = "ECE by the share of mispredictions found"
    table = Table.of(title, (*shown, *learned), rows, lambda numbers: map(Cell, numbers), note)
    return {"selective_figure4_detection": table}


@styled()
def _detection_figure(found: DetectionTask, rates: Sequence[float]) -> Any:
    """Return the curves of an oracle, and learned selectors where they stand."""
    figure, axes = new_figure(1, 1, 6.4, 3.8)
    axis = axes[0, 0]
    share = [100 * rate for rate in rates]
    for number, (title, errors) in enumerate(found.oracle.items()):
        label = f"{shorten(title, 28)}, oracle"
        axis.plot(share, [100 * error for error in errors], label=label, **line_style(number))
    for number, (title, one) in enumerate(found.learned.items()):
        if one.recall is not None and one.ece is not None:
            style = {"marker": "*X"[number % 2], "linestyle": "", "label": f"{shorten(title, 34)}, learned"}
            axis.plot([100 * one.recall], [100 * one.ece], "k", **style)
    axis.set(xlim=(0, 100), ylim=(0, None), xlabel="mispredicted voxels found, %", ylabel="calibration error in %")
    figure.legend(loc="outside lower center", ncols=2, fontsize=8)
    return figure


def _detection_figures(data: DetectionData, section: TaskSection) -> Iterator[Drawn]:
    if found := data.tasks.get(section.task):
        text = (
            "If mistakes could be found and only their confidence lowered, the error would move along the lines: down "
            "while the voxels together are overconfident, and up once they are not. Single marks are selectors that "
            "were learned, at the share of mistakes that they find."
        )
        title = "What finding mistakes would be worth"
        yield drawn_of(section, "detection", title, text, _detection_figure, found, data.rates)


DETECTION = Study(
    "ECE by the share of mispredictions found: oracle curves, learned selectors", "",
    "counts the test cases of a repeat eleven times", False,
    per_task(
        _detect, partial(DetectionData, list(RATES)),
        f"no task has one of {', '.join(BASES)} of the mean logits among its pipelines, and one label per voxel",
    ), DetectionData, _detection_tables, _detection_figures,
)  # fmt: skip
