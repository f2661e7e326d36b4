"""What a check of a collection returns: problems, and one row a case."""

import re
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Problem:
    """One thing to know: which case (None for the folder), how bad, a sentence; and its cases, if it has several."""

    case_id: str | None
    severity: Severity
    text: str
    case_ids: tuple[str, ...] = ()


@dataclass(frozen=True)
class CaseRow:
    """What one case holds; shares are of its voxels, None where they cannot be had.

    Attributes:
        id: its name.
        shape: ``(classes, *space)`` of the scores.
        dtype: as stored.
        valid: share of voxels inside the mask.
        labelled: share of voxels that count.
        accuracy: share of the counting voxels whose winner is the label.
        predicted: voxels a class wins, inside the mask.
        labels: counting voxels a class.
    """

    id: str
    shape: tuple[int, ...]
    dtype: str
    valid: float
    labelled: float | None
    accuracy: float | None
    predicted: tuple[int, ...]
    labels: tuple[int, ...] | None


@dataclass
class CheckResult:
    """All problems and one row a readable case; `suspicions` counts the problems that all cases together show."""

    format: str
    kind: str
    pooling: str | None
    members: int
    num_classes: int
    class_names: tuple[str, ...] | None
    cases: int
    rows: list[CaseRow] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    suspicions: int = 0

    @property
    def usable(self) -> bool:
        """Whether there is no error."""
        return not any(problem.severity == "error" for problem in self.problems)

    @property
    def broken(self) -> set[str]:
        """The cases that have an error."""
        return {problem.case_id for problem in self.problems if problem.severity == "error" and problem.case_id}

    def digest(self) -> list[tuple[Problem, tuple[str, ...]]]:
        """Return problems that differ only in the case's name and in numbers as one: the first, and all their cases."""
        alike: dict[tuple[str, str], list[Problem]] = {}
        for problem in self.problems:
            text = problem.text if problem.case_id is None else problem.text.replace(problem.case_id, "")
            alike.setdefault((problem.severity, re.sub(r"\d[\d.,]*", "#", text)), []).append(problem)
        found = [
            (same[0], same[0].case_ids or tuple(one.case_id for one in same if one.case_id is not None))
            for same in alike.values()
        ]
        order = ("error", "warning", "note")
        return sorted(found, key=lambda pair: order.index(pair[0].severity))

    def class_table(self) -> list[dict[str, Any]]:
        """Return one line a class: its name, and its share of the predicted and of the labelled voxels."""
        predicted = np.sum([row.predicted for row in self.rows], axis=0) if self.rows else np.zeros(self.num_classes)
        counted = [row.labels for row in self.rows if row.labels is not None]
        labels = np.sum(counted, axis=0) if counted else None
        return [
            {
                "class": index,
                "name": None if self.class_names is None else self.class_names[index],
                "predicted": float(predicted[index] / max(predicted.sum(), 1)),
                "labels": None if labels is None else float(labels[index] / max(labels.sum(), 1)),
            }
            for index in range(self.num_classes)
        ]
