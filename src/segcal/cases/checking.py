"""Looking at every file of a collection before anything is fitted: what is in it, and what is wrong with it.

Nothing stops at the first problem: a damaged file, a label that does not exist, padding that pretends to be a
prediction and a label map that is not the argmax each become a line of the result.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from segcal.cases.base import CaseError
from segcal.cases.check_result import CaseRow, CheckResult, Problem
from segcal.cases.files import FileCases
from segcal.cases.formats import Stored
from segcal.cases.kinds import SUM_TOLERANCE, to_log_domain
from segcal.cases.opening import open_cases
from segcal.cases.padding import find_padding
from segcal.cases.parallel import map_ids
from segcal.checks import as_tensor, check_mask
from segcal.errors import InputError
from segcal.numerics import winner
from segcal.types import IGNORED

# Fewer cases than this, and intervals are wide and a fit can follow a single case.
ENOUGH_CASES = 25


def check_cases(
    predictions: str | Path | Sequence[str | Path],
    labels: str | Path | None = None,
    *,
    progress: Callable[[str], object] | None = None,
    workers: int = 1,
    **options: Any,
) -> CheckResult:
    """Read every case once and report what is there and what is wrong.

    Args:
        predictions: as for :func:`open_cases`.
        labels: as for :func:`open_cases`.
        progress: called with the id of each case when it is done.
        workers: how many processes look at cases.
        **options: the other arguments of :func:`open_cases`.
    """
    return check_opened(open_cases(predictions, labels, **(options | {"strict": False})), progress, workers)


def check_opened(
    cases: FileCases, progress: Callable[[str], object] | None = None, workers: int = 1, strict: bool = False
) -> CheckResult:
    """Check cases that were opened with ``strict=False``; see :func:`check_cases`.

    Args:
        cases: the cases.
        progress: called with the id of each case when it is done.
        workers: how many processes look at cases.
        strict: raise the first error as a :class:`CaseError` instead of reporting all.
    """
    result = CheckResult(
        format=cases.members[0].name,
        kind=cases.kind,
        pooling=cases.pooling,
        members=len(cases.members),
        num_classes=cases.num_classes,
        class_names=cases.class_names,
        cases=len(cases),
    )
    for case_id, (row, problems) in map_ids(cases.ids, partial(_check_case, cases), workers):
        for problem in problems if strict else []:
            if problem.severity == "error":
                raise CaseError(case_id, problem.text)
        result.problems.extend(problems)
        if row is not None:
            result.rows.append(row)
        if progress is not None:
            progress(case_id)
    result.problems.extend(_whole(cases, result))
    return result


def _check_case(cases: FileCases, case_id: str) -> tuple[CaseRow | None, list[Problem]]:
    """Check the members one after the other, then the labels; return the row of the first member, and all problems."""
    problems: list[Problem] = []
    first: tuple[Stored, Tensor] | None = None
    for number in range(len(cases.members)):
        found = _check_member(cases, case_id, number, problems)
        first = found if number == 0 else first
    if first is None:
        _report_label_file(cases, case_id, problems)
        return None, problems
    stored, decision = first
    space = tuple(decision.shape)
    mask = None
    labels = None
    try:
        if stored.mask is not None:
            mask = check_mask(as_tensor(stored.mask, "mask"), "mask", space)
        labels, _ = cases.read_labels(case_id, space, stored, mask)
    except InputError as error:
        problems.append(Problem(case_id, "error", str(error)))
    return _row(cases, case_id, decision, mask, labels), problems


def _check_member(cases: FileCases, case_id: str, number: int, problems: list[Problem]) -> tuple[Stored, Tensor] | None:
    member = cases.members[number]
    try:
        stored = cases.read_member(case_id, number)
        kind = member.values_kind or cases.kind
        logits = to_log_domain(stored.values, kind, str(member.path(case_id)), cases.num_classes)
        decision = winner(logits, axis=0)
        problems.extend(_suspicions(cases, case_id, number, stored, decision.numpy()))
    except InputError as error:
        reason = error.reason if isinstance(error, CaseError) else str(error)
        problems.append(Problem(case_id, "error", reason))
        return None
    return stored, decision


def _suspicions(cases: FileCases, case_id: str, number: int, stored: Stored, decision: np.ndarray) -> list[Problem]:
    """Return what is possible but seldom meant."""
    member = cases.members[number]
    path = member.path(case_id)
    values = np.asarray(stored.values)
    found = []
    padding = None if cases.kind == "sigmoid" else find_padding(values, stored.mask)
    if padding is not None:
        vector = ", ".join(f"{value:.4g}" for value in padding.vector)
        padded_logits = cases.kind == "logits" and padding.one_hot
        text = (
            f"{path} holds exactly ({vector}) in {padding.share:.1%} of its voxels: suspected padding, which is no "
            "prediction. Mask it, or export again without it."
        )
        found.append(Problem(case_id, "error" if padded_logits else "warning", text))
    if member.values_kind is None and cases.kind == "logits" and _like_probabilities(values):
        text = (
            f"{path} is declared as logits, but all its values lie in 0 to 1 and sum to 1. Declare kind='probs' if so."
        )
        found.append(Problem(case_id, "warning", text))
    stored_label = member.stored_label(case_id, decision.shape)
    if stored_label is not None:
        differ = float((stored_label != decision).mean()) if stored_label.shape == decision.shape else 1.0
        if differ > 0:
            text = (
                f"{path} has another argmax than the stored label map in {differ:.2%} of the voxels: "
                "post-processing, or another model, made one of them."
            )
            found.append(Problem(case_id, "warning", text))
    return found


def _like_probabilities(values: np.ndarray) -> bool:
    lowest, highest = as_tensor(values, "values").aminmax() if values.size else (0, 0)  # numpy is slow at half floats
    if lowest < 0 or highest > 1 + SUM_TOLERANCE:
        return False
    total = values.sum(axis=0, dtype=np.float64)
    return bool((np.abs(total - 1) <= SUM_TOLERANCE).all())


def _report_label_file(cases: FileCases, case_id: str, problems: list[Problem]) -> None:
    """Say that a label map is missing even where the scores cannot be read."""
    if cases.label_folder is not None and case_id not in cases.label_folder.files:
        problems.append(
            Problem(case_id, "error", f"{cases.label_folder.folder} has no label map for it. Add the file.")
        )


def _row(cases: FileCases, case_id: str, decision: Tensor, mask: Tensor | None, labels: Tensor | None) -> CaseRow:
    header = cases.members[0].header(case_id)
    classes = cases.num_classes
    inside = decision if mask is None else decision[mask]
    labelled = accuracy = None
    counts = None
    if labels is not None:
        counting = labels != IGNORED
        labelled = _share(counting)
        right = (decision == labels)[counting]
        accuracy = _share(right) if len(right) else None
        counts = tuple(torch.bincount(labels[counting], minlength=classes).tolist())
    return CaseRow(
        id=case_id,
        shape=header.shape,
        dtype=str(header.dtype),
        valid=1.0 if mask is None else _share(mask),
        labelled=labelled,
        accuracy=accuracy,
        predicted=tuple(torch.bincount(inside.reshape(-1), minlength=classes).tolist()),
        labels=counts,
    )


def _share(flags: Tensor) -> float:
    return int(flags.count_nonzero()) / max(flags.numel(), 1)


def _whole(cases: FileCases, result: CheckResult) -> list[Problem]:
    """Return what concerns the folder as a whole."""
    found = []
    if len(cases) < ENOUGH_CASES:
        found.append(
            Problem(None, "warning", f"{len(cases)} cases are few: with {ENOUGH_CASES} or more, intervals narrow.")
        )
    dtypes = sorted({row.dtype for row in result.rows})
    if len(dtypes) > 1:
        found.append(Problem(None, "warning", f"scores have the dtypes {', '.join(dtypes)}: were all made by one run?"))
    for line in result.class_table() if result.rows else []:
        name = f"class {line['class']}" + (f" ({line['name']})" if line["name"] else "")
        if line["labels"] == 0:
            found.append(
                Problem(None, "warning", f"{name} is in no label map: nothing can be learned or said about it.")
            )
        if line["predicted"] == 0:
            found.append(Problem(None, "note", f"{name} is never predicted."))
    if cases.label_folder is not None:
        spare = sorted(set(cases.label_folder.files) - set(cases.ids))
        if spare:
            text = f"{len(spare)} label maps have no prediction and are left out: {', '.join(spare[:5])}"
            found.append(Problem(None, "note", text + (", ..." if len(spare) > 5 else ".")))
    return found
