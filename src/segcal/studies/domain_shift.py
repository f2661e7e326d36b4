"""Calibration in the domain it was fitted for and in others (the layout of the selective-scaling paper's Tables 1, 2).

One row per dataset and model (here: a pooling of the ensemble), one column per calibrator: ECE, beside the mean
intersection over union of the uncalibrated prediction. In the second table calibrators are fitted on InD and tested on
SD, a task of `test_on`, without any fitting there.
"""

from collections.abc import Iterable

from msgspec import Struct

from segcal.report.table import Cell, Column, Group, Row, Table
from segcal.studies.setting import NothingToStudyError, Setting
from segcal.studies.study import Outcome, Study
from segcal.summary import Estimate, ResultRow

UNCALIBRATED = "identity"


class DomainRow(Struct):
    """Mean IoU uncalibrated, and the ECE of each calibrator; SD is "" in the domain of the fit."""

    InD: str
    SD: str
    model: str
    miou: Estimate | None
    ece: dict[str, Estimate]


class DomainShiftData(Struct):
    """The data of the study: the rows of its two tables."""

    in_domain: list[DomainRow]
    domain_shift: list[DomainRow]


def run_domain_shift(setting: Setting) -> Outcome[DomainShiftData]:
    """Tabulate the benchmark's results in and out of their domain."""
    if not any(row.test_on for row in setting.summary.results):
        raise NothingToStudyError("no task names another one in test_on")
    rows = [row for row in setting.summary.results if "ece" in row.metrics]
    inside = arrange(setting, [row for row in rows if not row.test_on])
    outside = arrange(setting, [row for row in rows if row.test_on])
    tables = {
        "selective_table1_in_domain": _table("ECE in the domain of the fit", inside),
        "selective_table2_domain_shift": _table("ECE under domain shift: fitted on InD, tested on SD", outside),
    }
    return Outcome(DomainShiftData(inside, outside), tables)


def arrange(setting: Setting, results: Iterable[ResultRow]) -> list[DomainRow]:
    """Return one row per task, target and pooling."""
    rows: dict[tuple[str, str, str], DomainRow] = {}
    for result in results:
        pipeline = setting.summary.pipelines[result.pipeline]
        key = (result.task, result.test_on, pipeline.pooling)
        row = rows.setdefault(key, DomainRow(*key, None, {}))
        row.ece[pipeline.calibrator] = result.metrics["ece"]
        if pipeline.calibrator == UNCALIBRATED:
            row.miou = result.metrics.get("miou")
    return list(rows.values())


def _table(title: str, rows: list[DomainRow]) -> Table:
    names = list(dict.fromkeys(name for row in rows for name in row.ece))
    columns = (Column("mIoU", digits=2, scale=100), *(Column("Uncal" if n == UNCALIBRATED else n) for n in names))
    groups: dict[str, list[Row]] = {}
    for row in rows:
        found = [row.miou, *(row.ece.get(name) for name in names)]
        cells = tuple(Cell(None if one is None else one.value) for one in found)
        groups.setdefault(f"{row.InD} to {row.SD}" if row.SD else row.InD, []).append(Row(row.model, cells))
    listed = tuple(Group(heading, tuple(found)) for heading, found in groups.items())
    note = "ECE with 50 bins, mean over cases and repeats; mIoU in %, of the uncalibrated prediction."
    return Table(title, "Model", columns, listed, (note,))


STUDY = Study(
    "fitted here, tested elsewhere", "a `test_on`", "nothing", True, run_domain_shift, DomainShiftData,
)  # fmt: skip
