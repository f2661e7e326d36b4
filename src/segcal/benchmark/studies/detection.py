"""What a better selector would be worth: ECE as a function of the share of mispredictions found (Fig. 4 of that paper).

An oracle flags a random share of the mispredicted voxels of a case, and no right ones; flagged voxels get a large
temperature, the others stay as a calibrator leaves them. From 0 % to 100 % each step flags what the step before did and
more, so that a curve is smooth. The ends are the calibrator alone and the best that selective scaling can do. Beside
the curves stands the selector that was learned: its recall and its precision on the same voxels, and the ECE it gave.
"""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from segcal.benchmark.pipelines import Pipeline
from segcal.benchmark.studies.base import Study
from segcal.benchmark.studies.setting import NothingToStudyError, Setting
from segcal.calibrators.base import Calibrator
from segcal.calibrators.selective import Selective
from segcal.calibrators.tie_break import with_lead
from segcal.cases.base import Case, Cases
from segcal.metrics.reliability import expected_calibration_error
from segcal.numerics import compute_dtype, winner
from segcal.report.table import Cell, Column, Group, Row, Table
from segcal.statistics.case import count_logits
from segcal.types import IGNORED

NAME = "detection"
RATES = tuple(rate / 10 for rate in range(11))
TEMPERATURE = 1e10
BINS = 50
# Calibrators that an oracle is put on top of.
BASES = ("identity", "ts", "cms_ap")
SEED = 0


@dataclass(frozen=True)
class Learned:
    """What a learned selector did on test cases, in voxels.

    Attributes:
        mispredicted: wrong predictions.
        flagged: voxels it flagged.
        found: wrong predictions among these.
        ece: of each case, after selective scaling.
    """

    mispredicted: int
    flagged: int
    found: int
    ece: tuple[float, ...]


def run_detection(setting: Setting) -> Study:
    """Draw the oracle's curves for every task of a benchmark, and place its learned selectors beside them."""
    curves: dict[str, dict[str, list[float]]] = {}
    learned: dict[str, dict[str, Learned]] = {}
    for task in setting.tasks:
        pipelines = setting.pipelines(task.name, "mean_logits")
        bases = [each for each in pipelines if each.calibrator in BASES and not each.options]
        if not bases:
            continue
        setting.progress(f"detection rates of {task.name}")
        cases = setting.some(setting.split(task, "mean_logits").test)
        curves[task.name] = oracle_curves(cases, {each.title: setting.calibrator(task, each) for each in bases})
        selective = {each.title: setting.calibrator(task, each) for each in pipelines if _is_selective(each)}
        learned[task.name] = {title: judge_selector(cases, one) for title, one in selective.items()}
    if not curves:
        raise NothingToStudyError(f"no task has one of {', '.join(BASES)} of the mean logits among its pipelines")
    return detection_study(curves, learned)


def oracle_curves(
    cases: Cases,
    calibrators: Mapping[str, Calibrator],
    rates: Sequence[float] = RATES,
    temperature: float = TEMPERATURE,
    seed: int = SEED,
) -> dict[str, list[float]]:
    """Return, for each calibrator, the mean ECE of the cases at each detection rate.

    Args:
        cases: labelled cases.
        calibrators: what stays of voxels that are not flagged.
        rates: shares of the mispredictions that are flagged.
        temperature: of flagged voxels.
        seed: of which ones they are.
    """
    sums = {title: np.zeros(len(rates)) for title in calibrators}
    for case in cases:
        for title, calibrator in calibrators.items():
            sums[title] += oracle_errors(case, calibrator, rates, temperature, seed)
    return {title: (total / len(cases)).tolist() for title, total in sums.items()}


@torch.no_grad()
def oracle_errors(
    case: Case, calibrator: Calibrator, rates: Sequence[float], temperature: float, seed: int
) -> list[float]:
    """Return the ECE of one case at each detection rate."""
    labels, scores = _counted_voxels(case, calibrator)
    first = winner(scores, axis=0)
    wrong = (first != labels).nonzero()[:, 0].numpy()
    order = np.random.default_rng([seed, zlib.crc32(case.id.encode())]).permutation(wrong)
    gaps = scores - scores.amax(0)
    smoothed = with_lead((gaps / temperature)[None], first[None])[0]
    errors = []
    for rate in rates:
        flagged = torch.zeros(len(labels), dtype=torch.bool)
        flagged[torch.from_numpy(order[: round(rate * len(order))])] = True
        errors.append(_error(torch.where(flagged, smoothed, gaps), labels))
    return errors


@torch.no_grad()
def judge_selector(cases: Cases, calibrator: Calibrator) -> Learned:
    """Return what a learned selector finds in cases, and the ECE of each after selective scaling."""
    assert isinstance(calibrator, Selective)
    mispredicted = flagged = found = 0
    errors = []
    for case in cases:
        labels, logits = _counted_voxels(case, None)
        seen = calibrator.parts(logits[None])[0]
        marked = calibrator.selector(seen)[0] > 0
        wrong = winner(seen)[0] != labels
        mispredicted += int(wrong.sum())
        flagged += int(marked.sum())
        found += int((wrong & marked).sum())
        errors.append(_error(calibrator.scores(logits[None])[0], labels))
    return Learned(mispredicted, flagged, found, tuple(errors))


def detection_study(
    curves: Mapping[str, Mapping[str, Sequence[float]]], learned: Mapping[str, Mapping[str, Learned]]
) -> Study:
    """Return the study of mean ECE by task, calibrator and rate, and of learned selectors by task and pipeline."""
    data: dict[str, dict[str, dict[str, Any]]] = {
        task: {
            "oracle": {title: list(errors) for title, errors in found.items()},
            "learned": {title: _plain(one) for title, one in learned.get(task, {}).items()},
        }
        for task, found in curves.items()
    }
    columns = (*(Column(f"{100 * rate:.0f} %", "ECE with mispredictions found") for rate in RATES[::2]),)
    columns += (
        Column("recall", "learned", digits=2),
        Column("precision", "learned", digits=2),
        Column("ECE", "learned"),
    )
    groups = []
    for task, one in data.items():
        rows = [
            Row(title, (*(Cell(e) for e in errors[::2]), *[Cell(None)] * 3)) for title, errors in one["oracle"].items()
        ]
        for title, own in one["learned"].items():
            cells = (Cell(own["recall"]), Cell(own["precision"]), Cell(own["ece"]))
            rows.append(Row(title, (*[Cell(None)] * len(RATES[::2]), *cells)))
        groups.append(Group(task, tuple(rows)))
    note = (
        f"An oracle flags a share of the mispredictions and no right voxel; flagged voxels get T = {TEMPERATURE:.0e}."
    )
    table = Table("ECE by the share of mispredictions found", "Pipeline", columns, tuple(groups), (note,))
    return Study(NAME, {"rates": list(RATES), "tasks": data}, {"selective_figure4_detection": table})


def _plain(one: Learned) -> dict[str, Any]:
    return {
        "recall": one.found / one.mispredicted if one.mispredicted else None,
        "precision": one.found / one.flagged if one.flagged else None,
        "ece": float(np.mean(one.ece)) if one.ece else None,
        "mispredicted": one.mispredicted,
        "flagged": one.flagged,
    }


def _counted_voxels(case: Case, calibrator: Calibrator | None) -> tuple[Tensor, Tensor]:
    """Return the labels of the voxels that count, and their scores ``(C, n)``."""
    assert case.labels is not None
    logits = case.logits.to(compute_dtype(case.logits.dtype))
    if calibrator is not None:
        logits = calibrator.scores(logits[None], case.context)[0]
    counts = case.labels.reshape(-1) != IGNORED
    return case.labels.reshape(-1)[counts], logits.reshape(len(logits), -1)[:, counts]


def _error(scores: Tensor, labels: Tensor) -> float:
    tables = count_logits(scores, labels, bins=(BINS,), class_bins=0).tables
    return expected_calibration_error(tables.reliability[BINS]["all"])


def _is_selective(pipeline: Pipeline) -> bool:
    return pipeline.calibrator == "selective"
