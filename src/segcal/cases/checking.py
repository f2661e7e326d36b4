"""Looking at every file of a collection before anything is fitted: what is in it, and what is wrong with it.

Nothing stops at the first problem: a damaged file, a label that does not exist, padding that pretends to be a
prediction and a label map that is not the argmax each become a line of the result. What only all cases together show
(labels that are mirrored or of another case, members or cases that are there twice) is judged from glances at them.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from segcal.cases.base import CaseError
from segcal.cases.check_result import CaseRow, CheckResult, Problem
from segcal.cases.ensemble import Ensemble, Member, look_at
from segcal.cases.files import FileCases
from segcal.cases.formats import Stored
from segcal.cases.glance import Glance, glance
from segcal.cases.member_check import check_member
from segcal.cases.open import open_cases
from segcal.cases.parallel import map_ids
from segcal.cases.suspicion import single_folds
from segcal.cases.watch import Watch
from segcal.checks import as_tensor, check_mask
from segcal.errors import InputError
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
    watch, ensemble = Watch(cases.num_classes), Ensemble(cases.member_names)
    for case_id, seen in map_ids(cases.ids, partial(_check_case, cases), workers):
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
    suspected = watch.found() + ensemble.found()
    result.suspicions = len(suspected)
    result.problems.extend(Problem(None, "warning", one.text, one.ids) for one in suspected)
    result.problems.extend(Problem(None, "note", one.text) for one in single_folds(cases.origin))
    result.problems.extend(_whole(cases, result))
    return result


class _Seen(NamedTuple):
    """What was found in one case; without an error, also what the cases are compared by."""

    problems: list[Problem]
    row: CaseRow | None = None
    glance: Glance | None = None
    members: tuple[Member, ...] = ()


def _check_case(cases: FileCases, case_id: str) -> _Seen:
    """Check the members one after the other, then the labels; the row is that of the first member."""
    problems: list[Problem] = []
    members: list[Member] = []
    stored: Stored | None = None
    decision: Tensor | None = None
    for number in range(len(cases.members)):
        found = check_member(cases, case_id, number, decision)
        problems += found.problems
        if number == 0:
            stored, decision = found.stored, found.decision
        if found.decision is not None and decision is not None:
            members.append(look_at(found.digest, found.decision, decision, cases.num_classes))
    if stored is None or decision is None:
        _report_label_file(cases, case_id, problems)
        return _Seen(problems)
    mask, labels, error = _read_labels(cases, case_id, stored, decision)
    if error is not None:
        problems.append(error)
    row = _row(cases, case_id, decision, mask, labels)
    if any(problem.severity == "error" for problem in problems):
        return _Seen(problems, row)
    digest = b"".join(member.digest for member in members)
    own = glance(case_id, digest, decision, labels, mask, cases.num_classes)
    return _Seen(problems, row, own, tuple(members))


def _read_labels(
    cases: FileCases, case_id: str, stored: Stored, decision: Tensor
) -> tuple[Tensor | None, Tensor | None, Problem | None]:
    """Return mask and labels, as far as they can be had, and what is wrong with them."""
    space = tuple(decision.shape)
    mask = labels = None
    try:
        if stored.mask is not None:
            mask = check_mask(as_tensor(stored.mask, "mask"), "mask", space)
        labels, _ = cases.read_labels(case_id, space, stored, mask)
        _refuse_nothing(decision, mask, labels)
    except InputError as error:
        return mask, labels, Problem(case_id, "error", str(error))
    return mask, labels, None


def _refuse_nothing(decision: Tensor, mask: Tensor | None, labels: Tensor | None) -> None:
    """Refuse a case without a voxel that counts."""
    if decision.numel() == 0:
        raise InputError(
            f"scores have space {tuple(decision.shape)}, but at least one voxel is needed. Leave the case out."
        )
    counting = mask if labels is None else labels != IGNORED
    if counting is not None and not bool(counting.any()):
        what = "mask is empty" if labels is None else "labels are ignored everywhere"
        raise InputError(
            f"{what}, but at least one voxel must count. Check the ignore label and the mask, or leave the case out."
        )


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
