r"""Padding that pretends to be a prediction, and what it does to calibration (definitions 13.1).

Networks see a crop; exporters fill the rest of the volume with (1, 0, ..., 0). That is right for probabilities. As
logits, such a voxel has the softmax :math:`e / (e + C - 1)` for the background, although it is always right. With five
classes this is a confidence of 0.405, a gap of 0.595 and an NLL of 0.905, in as many voxels as were padded.

Every calibrator is fitted and judged three ways, on the same cases:

- *with the mask*: padded voxels neither fit nor count;
- *without the mask*: padded voxels are voxels like others, in the fit and in the numbers, as in the published results;
- *fitted without, judged with*: what such a calibrator does to the voxels that the network did predict.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import torch
from msgspec import Struct

from segcal.calibrators.base import Calibrator
from segcal.calibrators.temperature import TemperatureScaling
from segcal.cases.base import Case, Cases, Split
from segcal.cases.kinds import Padding, find_padding
from segcal.errors import InputError
from segcal.evaluation.case_counter import summarise
from segcal.fitting.config import FitConfig
from segcal.fitting.division import group_names
from segcal.fitting.fit import fit_to
from segcal.fitting.request import read_data
from segcal.report.table import Cell, Column, Table
from segcal.resample import LEVEL, Draws
from segcal.studies.study import ChangedCases, NothingToStudyError, Setting, Study, count_stages, value_cell
from segcal.summary import Estimate
from segcal.types import IGNORED

METRICS = ("nll", "ece", "ba_ece", "ace", "dice", "flip_rate")
WAYS = {"masked": "with the mask", "unmasked": "without the mask", "rescued": "fitted without, judged with"}
# Of the metrics that the table shows, by way.
COLUMNS = {
    "nll": Column("NLL"),
    "ece": Column("ECE"),
    "ace": Column("ACE"),
    "dice": Column("DSC", digits=1, scale=100),
    "flip_rate": Column("Flip", digits=2, scale=100),
}


class PaddingCheck(Struct):
    """Cases that a check of the whole array catches, their mean share of padding, and those caught inside the mask."""

    cases: int
    caught: int
    mean_share: float
    caught_inside_the_mask: int


class PaddingData(Struct):
    """The data of the study.

    Attributes:
        padded_voxel: confidence, gap and NLL of a padded voxel, read as logits and not calibrated.
        temperature: that of temperature scaling, by way of the fit.
        calibrators: numbers by calibrator, way and metric.
    """

    padded_voxel: dict[str, float]
    check: PaddingCheck
    temperature: dict[str, float]
    calibrators: dict[str, dict[str, dict[str, Estimate]]]


def padded(case: Case, masked: bool) -> Case:
    """Return a case whose logits outside its mask are (1, 0, ..., 0), as an exporter of probabilities fills in.

    With `masked` the mask is kept; else it is forgotten, so that padding counts as background, rightly predicted.
    """
    if case.mask is None or case.labels is None:
        raise InputError(
            f"case {case.id!r} has no {'mask' if case.mask is None else 'labels'}, but the padding study needs both. "
            "Take cases with a cropped field of view."
        )
    vector = torch.zeros(len(case.logits), dtype=case.logits.dtype)
    vector[0] = 1
    logits = torch.where(case.mask, case.logits, vector.reshape(-1, *[1] * case.mask.ndim))
    labels = case.labels.where(case.mask, IGNORED if masked else 0)
    return replace(case, logits=logits, labels=labels, mask=case.mask if masked else None)


def _run(setting: Setting) -> PaddingData:
    """Pad the first task of a benchmark whose cases have masks, and fit and judge its calibrators the three ways."""
    for task in setting.tasks:
        split = setting.split(task, "mean_logits")
        if split.cal.has_offset and split.cal.raters is None and split.cal.read(split.cal.ids[0]).mask is not None:
            wanted = setting.protocol.study_options.padding_calibrators
            pipelines = {each.calibrator: each for each in setting.pipelines(task.name, "mean_logits")}
            # Inside the mask the padded cases are the benchmark's own: what it fitted need not be fitted again.
            names = [name for name in pipelines if wanted is None or name in wanted]
            known = {name: setting.calibrator(task, pipelines[name]) for name in names}
            return study_padding(split, known, setting.protocol.fit)
    raise NothingToStudyError("no task has logits with their offset, a mask and one label per voxel")


def study_padding(split: Split, masked: Mapping[str, Calibrator], config: FitConfig) -> PaddingData:
    """Judge calibrators, by name, the three ways; `masked` are fitted with the mask, and are fitted without it here."""
    cal, val, whole = (ChangedCases(part, partial(padded, masked=False)) for part in split)
    data = read_data(cal, val if len(val) else None, config)
    unmasked: dict[str, Calibrator] = {name: fit_to(name, data, config).calibrator for name in masked}
    inside = ChangedCases(split.test, partial(padded, masked=True))
    judged = (_judge(inside, masked), _judge(whole, unmasked), _judge(inside, unmasked))
    temperatures = {
        way: 1 / made.inverse_temperature.item()
        for way, fits in {"masked": masked, "unmasked": unmasked}.items()
        if isinstance(made := fits.get("ts"), TemperatureScaling)
    }
    numbers = {name: {way: found[name] for way, found in zip(WAYS, judged, strict=True)} for name in masked}
    confidence = math.e / (math.e + split.test.num_classes - 1)
    voxel = {"confidence": confidence, "gap": 1 - confidence, "nll": -math.log(confidence)}
    return PaddingData(voxel, _check_padding(inside), temperatures, numbers)


def _judge(cases: Cases, calibrators: Mapping[str, Calibrator]) -> dict[str, dict[str, Estimate]]:
    draws = Draws([group_names(cases, sorted(cases.ids))])
    stages = count_stages(cases, calibrators, METRICS)
    return {name: summarise([stage], draws, LEVEL)[0][0] for name, stage in stages.items()}


def _check_padding(cases: Cases) -> PaddingCheck:
    """Return what a check of padded cases finds, in whole arrays and inside the masks."""
    known: list[Padding] = []
    inside = 0
    for case in cases:
        assert case.mask is not None
        values = case.logits.numpy()
        if (found := find_padding(values)) is not None:
            known.append(found)
        inside += find_padding(values, case.mask.numpy()) is not None
    share = sum(one.share for one in known) / max(len(known), 1)
    return PaddingCheck(len(cases), sum(one.one_hot for one in known), share, inside)


def _tables(data: PaddingData) -> dict[str, Table]:
    check, voxel = data.check, data.padded_voxel
    notes = (
        f"Outside the crop, logits are (1, 0, ..., 0): {100 * check.mean_share:.0f} % of the voxels, each with "
        f"confidence {voxel['confidence']:.3f} and NLL {voxel['nll']:.3f} before calibration.",
        f"The check of the cases reports it in {check.caught} of {check.cases} cases.",
    )
    columns = [replace(column, span=span) for span in WAYS.values() for column in COLUMNS.values()]

    def cells(ways: Mapping[str, Mapping[str, Estimate]]) -> list[Cell]:
        return [value_cell(ways[way][key]) for way in WAYS for key in COLUMNS]

    title = "What padded logits do to every calibrator"
    return {"padding": Table.of(title, columns, {"": data.calibrators}, cells, *notes, first="Calibrator")}


STUDY = Study(
    "one-hot padding read as logits", "logits and masks", "fits and tests again", False,
    _run, PaddingData, _tables,
)  # fmt: skip
