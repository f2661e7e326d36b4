"""Calibration in the domain it was fitted for and in others (the layout of the selective-scaling paper's Tables 1, 2).

One row a dataset and model (here: a pooling of the ensemble), one column a calibrator: ECE, beside the mean
intersection over union of the uncalibrated prediction. In the second table calibrators are fitted on InD and tested on
SD, a task of `test_on`, without any fitting there.
"""

from typing import Any

from segcal.studies.base import Study
from segcal.studies.setting import NothingToStudyError, Setting
from segcal.report.table import Cell, Column, Group, Row, Table

NAME = "domain_shift"
UNCALIBRATED = "identity"


def run_domain_shift(setting: Setting) -> Study:
    """Tabulate the benchmark's results in and out of their domain."""
    shifted = [row for row in setting.summary["results"] if row["test_on"]]
    if not shifted:
        raise NothingToStudyError("no task names another one in test_on")
    rows = [row for row in setting.summary["results"] if "ece" in row["metrics"]]
    inside = arrange(setting, [row for row in rows if not row["test_on"]])
    outside = arrange(setting, [row for row in rows if row["test_on"]])
    data = {"in_domain": inside, "domain_shift": outside}
    tables = {
        "selective_table1_in_domain": _table("ECE in the domain of the fit", inside),
        "selective_table2_domain_shift": _table("ECE under domain shift: fitted on InD, tested on SD", outside),
    }
    return Study(NAME, data, tables)


def arrange(setting: Setting, results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one row a task, target and pooling: mean IoU uncalibrated, and the ECE of each calibrator."""
    facts = setting.summary["pipelines"]
    rows: dict[tuple[str, str, str], dict[str, Any]] = {}
    for result in results:
        pipeline = facts[result["pipeline"]]
        key = (result["task"], result["test_on"], pipeline["pooling"])
        fresh = {"InD": key[0], "SD": key[1], "model": key[2], "miou": None, "ece": {}}
        row = rows.setdefault(key, fresh)
        row["ece"][pipeline["calibrator"]] = result["metrics"]["ece"]
        if pipeline["calibrator"] == UNCALIBRATED:
            row["miou"] = result["metrics"].get("miou")
    return list(rows.values())


def _table(title: str, rows: list[dict[str, Any]]) -> Table:
    names = list(dict.fromkeys(name for row in rows for name in row["ece"]))
    columns = (Column("mIoU", digits=2, scale=100), *(Column("Uncal" if n == UNCALIBRATED else n) for n in names))
    groups: dict[str, list[Row]] = {}
    for row in rows:
        heading = f"{row['InD']} to {row['SD']}" if row["SD"] else row["InD"]
        miou = Cell(None if row["miou"] is None else row["miou"]["value"])
        eces = [Cell(row["ece"][name]["value"] if name in row["ece"] else None) for name in names]
        groups.setdefault(heading, []).append(Row(row["model"], (miou, *eces)))
    listed = tuple(Group(heading, tuple(found)) for heading, found in groups.items())
    note = "ECE with 50 bins, mean over cases and repeats; mIoU in %, of the uncalibrated prediction."
    return Table(title, "Model", columns, listed, (note,))
