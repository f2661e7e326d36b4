"""Looking at every case of a collection before anything is fitted: what is in it, and what is wrong with it.

Nothing stops at the first problem: a damaged file, a label that does not exist, padding that pretends to be a
prediction and a label map that is not the argmax each become a line of the result. What only all cases together show
(labels that are mirrored or of another case, members or cases that are there twice) is judged from glances at them.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypedDict, get_args

import numpy as np

from segcal.arguments import typed
from segcal.cases.base import CaseError, Cases
from segcal.cases.check_case import CaseRow, Problem, Severity, check_files, check_read
from segcal.cases.files import FileCases
from segcal.cases.loader import as_cases
from segcal.cases.open import open_cases
from segcal.cases.parallel import Workers, map_ids
from segcal.cases.suspicion import doubtful_kind, single_folds
from segcal.cases.watch import Ensemble, Watch
from segcal.regions import Regions

# Fewer cases than this, and intervals are wide and a fit can follow a single case.
ENOUGH_CASES = 25

ClassLine = TypedDict("ClassLine", {"class": int, "name": str | None, "predicted": float, "labels": float | None})


@dataclass
class CheckResult:
    """All problems and one row per readable case; `suspicions` counts the problems that all cases together show."""

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
    regions: Regions | None = None

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
        return sorted(found, key=lambda pair: get_args(Severity).index(pair[0].severity))

    def class_table(self) -> list[ClassLine]:
        """Return one line per class: its name, and its share of the predicted and of the labelled voxels."""
        predicted = np.sum([row.predicted for row in self.rows], axis=0) if self.rows else np.zeros(self.num_classes)
        counted = [row.labels for row in self.rows if row.labels is not None]
        labels = np.sum(counted, axis=0) if counted else None
        totals = [predicted.sum(), 0 if labels is None else labels.sum()]
        if self.regions is not None:  # regions overlap: shares are of all voxels
            sizes = [int(np.prod(row.shape[1:])) for row in self.rows]
            shares = [[row.valid, row.labelled or 0.0] for row in self.rows]
            totals = list(np.array(sizes) @ np.array(shares)) if sizes else [0, 0]
        return [
            {
                "class": index,
                "name": None if self.class_names is None else self.class_names[index],
                "predicted": float(predicted[index] / max(totals[0], 1)),
                "labels": None if labels is None else float(labels[index] / max(totals[1], 1)),
            }
            for index in range(self.num_classes)
        ]


@typed
def check(
    cases: Any,
    labels: Any = None,
    *,
    progress: Callable[[str], object] | None = None,
    workers: Workers = 1,
    strict: bool = False,
    **declared: Any,
) -> CheckResult:
    """Read every case once and report what is there and what is wrong.

    Args:
        cases: the cases; or folders, for :func:`segcal.open_cases`; or arrays, for :func:`segcal.cases.as_cases`.
        labels: of folders and arrays.
        progress: called with the id of each case when it is done.
        workers: how many processes look at cases.
        strict: raise the first error as a :class:`CaseError` instead of reporting all.
        **declared: what is declared of folders and arrays: the other arguments of these functions.
    """
    folders = cases if isinstance(cases, list | tuple) and cases else [cases]
    if all(isinstance(folder, str | Path) for folder in folders):
        cases = open_cases(cases, labels, strict=strict, **declared)
    else:
        cases = as_cases(cases, labels, **declared)
    files = cases if isinstance(cases, FileCases) else None
    result = CheckResult(
        format="arrays" if files is None else files.members[0].name,
        kind=cases.kind,
        pooling=cases.pooling,
        members=max(len(cases.member_names), 1),
        num_classes=cases.num_classes,
        class_names=cases.class_names,
        cases=len(cases),
        regions=cases.regions,
    )
    watch = Watch(cases.num_classes + (cases.regions is not None))  # of regions also: none
    ensemble = Ensemble(cases.member_names)
    look = partial(check_read, cases) if files is None else partial(check_files, files)
    for case_id, seen in map_ids(cases.ids, look, workers):
        for problem in seen.problems if strict else []:
            if problem.severity == "error":
                raise CaseError(case_id, problem.text)
        result.problems.extend(seen.problems)
        if seen.row is not None:
            result.rows.append(seen.row)
        if seen.glance is not None:
            watch.add(seen.glance)
        ensemble.add(seen.members)
        if progress is not None:
            progress(case_id)
    suspected = watch.found() + ensemble.found() + (doubtful_kind(cases) if cases.regions is not None else [])
    result.suspicions = len(suspected)
    result.problems.extend(Problem(None, "warning", one.text, one.ids) for one in suspected)
    result.problems.extend(Problem(None, "note", one.text) for one in single_folds(cases.origin))
    result.problems.extend(_whole(cases, result))
    return result


def _whole(cases: Cases, result: CheckResult) -> list[Problem]:
    """Return what concerns the folder as a whole."""
    found: list[tuple[Severity, str]] = []
    if len(cases) < ENOUGH_CASES:
        found.append(("warning", f"{len(cases)} cases are few: with {ENOUGH_CASES} or more, intervals narrow."))
    dtypes = sorted({row.dtype for row in result.rows})
    if len(dtypes) > 1:
        found.append(("warning", f"scores have the dtypes {', '.join(dtypes)}: were all made by one run?"))
    for line in result.class_table() if result.rows else []:
        what = "class" if cases.regions is None else "region"
        name = f"{what} {line['class']}" + (f" ({line['name']})" if line["name"] else "")
        if line["labels"] == 0:
            found.append(("warning", f"{name} is in no label map: nothing can be learned or said about it."))
        if line["predicted"] == 0:
            found.append(("note", f"{name} is never predicted."))
    folder = cases.label_folder if isinstance(cases, FileCases) else None
    spare = [] if folder is None else sorted(set(folder.files) - set(cases.ids))
    if spare:
        text = f"{len(spare)} label maps have no prediction and are left out: {', '.join(spare[:5])}"
        found.append(("note", text + (", ..." if len(spare) > 5 else ".")))
    return [Problem(None, severity, text) for severity, text in found]
