r"""What padding that pretends to be a prediction does to calibration (definitions 13.1).

Networks see a crop; exporters fill the rest of the volume with (1, 0, ..., 0). That is right for probabilities. As
logits, such a voxel has the softmax :math:`e / (e + C - 1)` for the background, although it is always right: with five
classes a confidence of 0.405, a gap of 0.595 and an NLL of 0.905, in as many voxels as were padded.

Every calibrator is fitted and judged three ways, on the same cases:

- *with the mask*: padded voxels neither fit nor count;
- *without the mask*: padded voxels are voxels like others, in the fit and in the numbers, as in the published results;
- *fitted without, judged with*: what such a calibrator does to the voxels that the network did predict.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from segcal.benchmark.studies.base import Study
from segcal.benchmark.studies.padded_cases import PaddedCases
from segcal.benchmark.studies.setting import NothingToStudyError, Setting
from segcal.calibrators.base import Calibrator
from segcal.calibrators.temperature import TemperatureScaling
from segcal.cases.base import Case, Cases, Split
from segcal.cases.kinds import Padding, find_padding
from segcal.evaluation.case_counter import Counter
from segcal.evaluation.stage import Stage, summarise
from segcal.fitting.config import FitConfig
from segcal.fitting.fit import fit_to
from segcal.fitting.request import read_data
from segcal.metrics import find_metrics
from segcal.report.table import Cell, Column, Group, Row, Table
from segcal.summary import LEVEL, Draws

NAME = "padding"
METRICS = ("nll", "ece", "ba_ece", "ace", "dice", "flip_rate")
WAYS = {"masked": "with the mask", "unmasked": "without the mask", "rescued": "fitted without, judged with"}
COLUMNS = (
    ("NLL", 3, 1.0, "nll"),
    ("ECE", 3, 1.0, "ece"),
    ("ACE", 3, 1.0, "ace"),
    ("DSC", 1, 100.0, "dice"),
    ("Flip", 2, 100.0, "flip_rate"),
)


@dataclass(frozen=True)
class PaddingReport:
    """What a look for padding finds in one case.

    Attributes:
        without_mask: what :func:`segcal.cases.kinds.find_padding` finds in the whole array.
        with_mask: what it finds inside the mask.
    """

    without_mask: Padding | None
    with_mask: Padding | None


def run_padding(setting: Setting) -> Study:
    """Pad the first task of a benchmark whose cases have masks, and fit and judge its calibrators the three ways."""
    for task in setting.tasks:
        split = setting.split(task, "mean_logits")
        if split.cal.has_offset and split.cal.read(split.cal.ids[0]).mask is not None:
            wanted = setting.options.padding_calibrators
            pipelines = {each.calibrator: each for each in setting.pipelines(task.name, "mean_logits")}
            names = [name for name in pipelines if wanted is None or name in wanted]
            # Inside the mask the padded cases are the benchmark's own: what it fitted need not be fitted again.
            known = {name: setting.calibrator(task, pipelines[name]) for name in names}
            return study_padding(split, names, setting.protocol.fit, known, setting.progress)
    raise NothingToStudyError("no task has logits with their offset and a mask")


def study_padding(
    split: Split,
    calibrators: Sequence[str],
    config: FitConfig,
    masked: Mapping[str, Calibrator] | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Study:
    """Fit and judge every calibrator the three ways.

    Args:
        split: calibration, validation and test cases with masks and with logits that have their offset.
        calibrators: names from :data:`segcal.CALIBRATORS`; "identity" stands for no calibration.
        config: of the fits.
        masked: calibrators that are already fitted with the mask.
        progress: told what is done next.
    """
    inside = [PaddedCases(part, masked=True) for part in split]
    whole = [PaddedCases(part, masked=False) for part in split]
    fits = {
        "masked": masked or _fit_all(inside, calibrators, config, progress),
        "unmasked": _fit_all(whole, calibrators, config, progress),
    }
    progress("judging with and without the mask")
    found = {
        "masked": _judge(inside[2], fits["masked"]),
        "unmasked": _judge(whole[2], fits["unmasked"]),
        "rescued": _judge(inside[2], fits["unmasked"]),
    }
    numbers = {name: {way: found[way][name] for way in WAYS} for name in calibrators}
    temperatures = {way: _temperature(made["ts"]) for way, made in fits.items() if "ts" in made}
    reports = {
        case_id: look_for_padding(split.test.read(case_id).mask, whole[2].read(case_id)) for case_id in split.test.ids
    }
    return padding_study(numbers, reports, split.test.num_classes, temperatures)


def look_for_padding(mask: torch.Tensor | None, padded: Case) -> PaddingReport:
    """Return what a check of this case says, with its mask and without."""
    values = padded.logits.numpy()
    return PaddingReport(find_padding(values), None if mask is None else find_padding(values, mask.numpy()))


def padding_study(
    numbers: Mapping[str, Mapping[str, Mapping[str, Any]]],
    reports: Mapping[str, PaddingReport],
    num_classes: int,
    temperatures: Mapping[str, float],
) -> Study:
    """Return the study of estimates by calibrator, way and metric, and of what a check says about each case."""
    padded = [report.without_mask for report in reports.values() if report.without_mask is not None]
    caught = sum(one.one_hot for one in padded)
    share = sum(one.share for one in padded) / max(len(padded), 1)
    confidence = math.e / (math.e + num_classes - 1)
    data = {
        "padded_voxel": {"confidence": confidence, "gap": 1 - confidence, "nll": -math.log(confidence)},
        "check": {
            "cases": len(reports),
            "caught": caught,
            "mean_share": share,
            "caught_inside_the_mask": sum(report.with_mask is not None for report in reports.values()),
        },
        "temperature": dict(temperatures),
        "calibrators": {name: dict(ways) for name, ways in numbers.items()},
    }
    notes = (
        f"Outside the crop, logits are (1, 0, ..., 0): {100 * share:.0f} % of the voxels, each with confidence "
        f"{confidence:.3f} and NLL {-math.log(confidence):.3f} before calibration.",
        f"The check of the cases reports it in {caught} of {len(reports)} cases.",
    )
    columns = tuple(Column(title, span, digits, scale) for span in WAYS.values() for title, digits, scale, _ in COLUMNS)
    rows = tuple(
        Row(name, tuple(_cell(ways[way], key) for way in WAYS for *_, key in COLUMNS)) for name, ways in numbers.items()
    )
    table = Table("What padded logits do to every calibrator", "Calibrator", columns, (Group("", rows),), notes)
    return Study(NAME, data, {"padding": table})


def _fit_all(
    parts: Sequence[Cases], calibrators: Sequence[str], config: FitConfig, progress: Callable[[str], None]
) -> dict[str, Calibrator]:
    data = read_data(parts[0], parts[1] if len(parts[1]) else None, config)
    fits = {}
    for name in calibrators:
        progress(f"padding: fitting {name}")
        fits[name] = fit_to(name, data, config).calibrator
    return fits


def _temperature(calibrator: Calibrator) -> float:
    assert isinstance(calibrator, TemperatureScaling)
    return 1 / calibrator.inverse_temperature.item()


def _judge(cases: Cases, calibrators: Mapping[str, Calibrator]) -> dict[str, dict[str, Any]]:
    """Return the estimates of each calibrator, every case read once."""
    chosen = find_metrics(METRICS)
    counter, stages = Counter(chosen), {name: Stage(chosen) for name in calibrators}
    for case in cases:
        for name, counted in counter.count_each(case, calibrators)[1].items():
            stages[name].add(case.id, counted.tables)
    draws = Draws([len(cases)])
    return {
        name: {metric: asdict(one) for metric, one in summarise([stage], draws, LEVEL)[0][0].items()}
        for name, stage in stages.items()
    }


def _cell(numbers: Mapping[str, Mapping[str, Any]], key: str) -> Cell:
    return Cell(numbers[key]["value"])
