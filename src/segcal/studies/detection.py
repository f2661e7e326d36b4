"""The worth of a better selector: ECE by the share of mispredictions found (Fig. 4 of selective scaling).

An oracle flags a random share of the mispredicted voxels of a case, and no right ones; flagged voxels get a large
temperature, the others stay as a calibrator leaves them. From 0 % to 100 % each step flags what the step before did and
more, so that a curve is smooth. The ends are the calibrator alone and the best that selective scaling can do. Beside
the curves stands the selector that was learned: its recall and its precision on the same voxels, and the ECE it gave.
"""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from msgspec import Struct
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
from segcal.report.figures import Drawn, line_style, new_figure, shorten, styled
from segcal.report.table import Cell, Column, Table
from segcal.statistics.case import count_logits
from segcal.studies.study import Setting, Study, drawn_of, task_table
from segcal.types import IGNORED

RATES = tuple(rate / 10 for rate in range(11))
TEMPERATURE = 1e10
BINS = 50
# Calibrators that an oracle is put on top of.
BASES = ("identity", "ts", "cms_ap")
# Voxels that a selector sees at a time.
STEP = 1 << 20


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


def _run(setting: Setting) -> DetectionData:
    """Draw the oracle's curves for every task of a benchmark, and place its learned selectors beside them."""

    def detected(task: Task) -> DetectionTask | None:
        pipelines = setting.pipelines(task.name, "mean_logits")
        bases = [each for each in pipelines if each.calibrator in BASES and not each.options]
        if not bases:
            return None
        setting.progress(f"detection rates of {task.name}")
        cases = setting.some(setting.split(task, "mean_logits").test)
        oracle = oracle_curves(cases, {each.title: setting.calibrator(task, each) for each in bases})
        selective = [each for each in pipelines if each.calibrator == "selective"]
        learned = {each.title: judge_selector(cases, setting.calibrator(task, each)) for each in selective}
        return DetectionTask(oracle, learned)

    nothing = f"no task has one of {', '.join(BASES)} of the mean logits among its pipelines"
    return DetectionData(list(RATES), setting.each_task(detected, nothing))


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


def _tables(data: DetectionData) -> dict[str, Table]:
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
    table = task_table(title, (*shown, *learned), rows, lambda numbers: map(Cell, numbers), note)
    return {"selective_figure4_detection": table}


@styled()
def _figure(found: DetectionTask, rates: Sequence[float]) -> Any:
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


def _figures(data: DetectionData, section: TaskSection) -> Iterator[Drawn]:
    if found := data.tasks.get(section.task):
        text = (
            "If mistakes could be found and only their confidence lowered, the error would move along the lines: down "
            "while the voxels together are too sure, and up once they are not. Single marks are selectors that were "
            "learned, at the share of mistakes that they find."
        )
        title = "What finding mistakes would be worth"
        yield drawn_of(section, "detection", title, text, _figure, found, data.rates)


STUDY = Study(
    "ECE by the share of mispredictions found: oracle curves, learned selectors", "",
    "counts the test cases of a repeat eleven times", False, _run, DetectionData, _tables, _figures,
)  # fmt: skip
