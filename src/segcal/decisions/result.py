"""The result of :func:`segcal.decide`: one row per case and structure, with what is guaranteed and what is expected."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from segcal.documents import write_csv, write_json

# How the files begin: what begins otherwise was written by something else.
SIGNATURES = {
    "decide.csv": re.compile(rb"case,structure,rule,threshold,"),
    "decide.json": re.compile(rb'\{\n "schema": \d+,\n "made_by": "segcal decide"'),
}


class DecisionRow(TypedDict):
    """One structure of one case; None is not defined.

    Without `threshold` the mask is the preserved one, or empty. `guaranteed` is the recall or the precision that is
    promised on average over cases. What is expected is so for calibrated, independent voxels, and `expected_dice` at
    most `dice_bound` off then. `overlap_voxels` reach the threshold and went to another structure.
    """

    case: str
    structure: str
    rule: str
    threshold: float | None
    guaranteed: float | None
    expected_dice: float
    dice_bound: float
    expected_recall: float | None
    expected_precision: float | None
    preserved_dice: float
    voxels: int
    preserved_voxels: int
    changed_voxels: int
    overlap_voxels: int
    volume: float
    expected_volume: float
    unit: str
    note: str


@dataclass(frozen=True)
class Decisions:
    """The masks of cases by a rule.

    Attributes:
        rows: one per case and structure.
        rule: which.
        promise: in words, what is guaranteed.
        written: how many cases this run wrote.
        already_there: how many were complete before.
        stale: the cases that have masks in the folder but no predictions any more.
        masks: by case, where no folder was named: a label map ``(*space)``, or ``(structures, *space)`` where the masks
            of structures may overlap.
    """

    rows: list[DecisionRow]
    rule: str
    promise: str
    written: int = 0
    already_there: int = 0
    stale: list[str] = field(default_factory=list)
    masks: Mapping[str, NDArray[np.integer]] = field(default_factory=dict, repr=False)

    def to_plain(self) -> dict[str, Any]:
        """Return everything but the masks as dicts, lists and numbers."""
        facts = {"rule": self.rule, "promise": self.promise}
        return {"schema": 1, "made_by": "segcal decide", **facts, "rows": self.rows}

    def write(self, folder: Path) -> None:
        """Write ``decide.json`` and ``decide.csv``; what is not defined is null, and an empty cell."""
        write_csv(folder / "decide.csv", list(DecisionRow.__annotations__), self.rows)
        write_json(folder / "decide.json", self.to_plain())
