"""Looking at one case: can it be read, what does it hold, and what about it is possible but seldom meant."""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from segcal.cases.base import CaseError, Cases
from segcal.cases.files import FileCases
from segcal.cases.formats import Stored
from segcal.cases.glance import Glance, digest_of, glance, glance_at
from segcal.cases.kinds import doubt_about, find_padding
from segcal.cases.watch import Member, look_at, look_at_case
from segcal.checks import as_tensor, check_mask
from segcal.errors import InputError
from segcal.numerics import winner
from segcal.regions import Regions
from segcal.types import IGNORED

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
    """Content of one case; shares are of its voxels, None where they cannot be had."""

    id: str
    shape: tuple[int, ...]  # (classes, *space) of the scores
    dtype: str  # as stored
    valid: float  # share inside the mask
    labelled: float | None  # share that counts
    accuracy: float | None  # share of the counting voxels whose winner is the label
    predicted: tuple[int, ...]  # voxels that each class wins, or each region is on, inside the mask
    labels: tuple[int, ...] | None  # counting voxels of each class or region


class Seen(NamedTuple):
    """Findings in one case; without an error, also what the cases are compared by."""

    problems: list[Problem]
    row: CaseRow | None = None
    glance: Glance | None = None
    members: tuple[Member, ...] = ()


def check_read(cases: Cases, case_id: str) -> Seen:
    """Check a case that has no files: it is read as it will be used."""
    try:
        case = cases.checked(case_id)
        _refuse_nothing(tuple(case.logits.shape[1:]), case.mask, case.labels)
        members = look_at_case(cases, case_id) if len(cases.member_names) > 1 else ()
    except InputError as error:
        return Seen([Problem(case_id, "error", error.reason if isinstance(error, CaseError) else str(error))])
    if cases.regions is not None:
        masks = case.logits > 0
        row = _region_row(case_id, cases.regions, masks, case.mask, case.labels, case.logits)
        seen = cases.regions.last_on(masks), cases.regions.last_true(case.labels), case.mask, len(masks) + 1
        return Seen([], row, glance(case_id, digest_of(case.logits), *seen))
    found = _padding(case_id, "it", case.logits.numpy(), case.mask, cases.kind)
    row = _row(case_id, winner(case.logits, axis=0), case.mask, case.labels, cases.num_classes, case.logits)
    return Seen(found, row, glance_at(case), members)


def check_files(cases: FileCases, case_id: str) -> Seen:
    """Check the members one after the other, then the labels; the row is that of the first member."""
    problems: list[Problem] = []
    members: list[Member] = []
    stored: Stored | None = None
    decision: Tensor | None = None
    masks: Tensor | None = None
    regions, classes = cases.regions, cases.num_classes + (cases.regions is not None)
    for number in range(len(cases.members)):
        found = check_member(cases, case_id, number, decision)
        problems += found.problems
        if number == 0:
            stored, decision, masks = found.stored, found.decision, found.masks
        if found.decision is not None and decision is not None:
            members.append(look_at(found.digest, found.decision, decision, classes))
    if stored is None or decision is None:
        folder = cases.label_folder
        if folder is not None and case_id not in folder.files:  # said even where the scores cannot be read
            problems.append(Problem(case_id, "error", f"{folder.folder} has no label map for it. Add the file."))
        return Seen(problems)
    mask, labels = _read_labels(cases, case_id, stored, tuple(decision.shape), problems)
    header = cases.members[0].header(case_id)
    if regions is None or masks is None:
        row = _row(case_id, decision, mask, labels, classes, header)
    else:
        row, labels = _region_row(case_id, regions, masks, mask, labels, header), regions.last_true(labels)
    if any(problem.severity == "error" for problem in problems):
        return Seen(problems, row)
    digest = b"".join(member.digest for member in members)
    own = glance(case_id, digest, decision, labels, mask, classes)
    return Seen(problems, row, own, tuple(members))


def _read_labels(
    cases: FileCases, case_id: str, stored: Stored, space: tuple[int, ...], problems: list[Problem]
) -> tuple[Tensor | None, Tensor | None]:
    """Return mask and labels, as far as they can be had, and add what is wrong with them."""
    mask = labels = None
    try:
        if stored.mask is not None:
            mask = check_mask(as_tensor(stored.mask, "mask"), "mask", space)
        labels, _ = cases.read_labels(case_id, space, stored, mask)
        _refuse_nothing(space, mask, labels)
        if not any(problem.severity == "error" for problem in problems):
            cases.check_geometry(case_id)
    except InputError as error:
        problems.append(Problem(case_id, "error", str(error)))
    return mask, labels


class _Checked(NamedTuple):
    """Problems of a file; if it can be read, what it holds, its winners, a digest of its scores, masks of regions."""

    problems: list[Problem]
    stored: Stored | None = None
    decision: Tensor | None = None
    digest: bytes = b""
    masks: Tensor | None = None


def check_member(cases: FileCases, case_id: str, number: int, first: Tensor | None) -> _Checked:
    """Check one member's file of a case; `first` are the winners of the first member, whose size all must have."""
    member = cases.members[number]
    try:
        stored = cases.read_member(case_id, number)
        logits = cases.to_logits(stored, member, str(member.path(case_id)))
        masks = None if cases.regions is None else logits > 0
        if cases.regions is None or masks is None:
            decision = shown = winner(logits, axis=0)
        else:
            decision, shown = cases.regions.last_on(masks), cases.regions.label_map(masks)
        problems = _doubts(cases, case_id, number, stored, shown.numpy())
        if member.values_kind is None and cases.regions is None and (doubt := doubt_about(logits, cases.kind)):
            problems.append(Problem(case_id, "warning", f"{member.path(case_id)}: {doubt}"))
    except InputError as error:
        return _Checked([Problem(case_id, "error", error.reason if isinstance(error, CaseError) else str(error))])
    if first is not None and decision.shape != first.shape:
        text = (
            f"{member.path(case_id)} has space {tuple(decision.shape)}, but the first member has {tuple(first.shape)}. "
            "Members of one ensemble must agree: export this one again or leave it out."
        )
        problems.append(Problem(case_id, "error", text))
    return _Checked(problems, stored, decision, digest_of(logits), masks)


def _doubts(cases: FileCases, case_id: str, number: int, stored: Stored, decision: np.ndarray) -> list[Problem]:
    """Return what is possible but seldom meant."""
    member = cases.members[number]
    path = member.path(case_id)
    values = np.asarray(stored.values)
    found = _padding(case_id, path, values, stored.mask, cases.kind if cases.regions is None else "sigmoid")
    lacking = member.lacking(case_id)
    if lacking:  # of logits this is an error; a probability of 0 may be meant, and where sums are 1 it is
        text = f"{path} {lacking}, which read as 0. Copy the file again if a chunk was lost."
        found.append(Problem(case_id, "warning" if cases.kind == "sigmoid" else "note", text))
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


def _padding(case_id: str, name: object, values: np.ndarray, mask: Any, kind: str) -> list[Problem]:
    padding = None if kind == "sigmoid" else find_padding(values, None if mask is None else np.asarray(mask))
    if padding is None:
        return []
    vector = ", ".join(f"{value:.4g}" for value in padding.vector)
    text = (
        f"{name} holds exactly ({vector}) in {padding.share:.1%} of its voxels: suspected padding, which is no "
        "prediction. Mask it, or export again without it."
    )
    return [Problem(case_id, "error" if kind == "logits" and padding.one_hot else "warning", text)]


def _refuse_nothing(space: tuple[int, ...], mask: Tensor | None, labels: Tensor | None) -> None:
    """Refuse a case without a voxel that counts."""
    if 0 in space:
        raise InputError(f"scores have space {space}, but at least one voxel is needed. Leave the case out.")
    counting = mask if labels is None else labels != IGNORED
    if counting is not None and not bool(counting.any()):
        what = "mask is empty" if labels is None else "labels are ignored everywhere"
        raise InputError(
            f"{what}, but at least one voxel must count. Check the ignore label and the mask, or leave the case out."
        )


def _row(
    case_id: str, decision: Tensor, mask: Tensor | None, labels: Tensor | None, classes: int, scores: Any
) -> CaseRow:
    """Return the row of a case; `scores` have a shape and a dtype."""
    inside = decision if mask is None else decision[mask]
    labelled = accuracy = counts = None
    if labels is not None:
        counting = labels != IGNORED
        right = decision[counting] == labels[counting]
        labelled, accuracy = _share(counting), _share(right) if len(right) else None
        counts = tuple(torch.bincount(labels[counting], minlength=classes).tolist())
    return CaseRow(
        id=case_id,
        shape=tuple(scores.shape),
        dtype=str(scores.dtype).removeprefix("torch."),
        valid=1.0 if mask is None else _share(mask),
        labelled=labelled,
        accuracy=accuracy,
        predicted=tuple(torch.bincount(inside.reshape(-1), minlength=classes).tolist()),
        labels=counts,
    )


def _region_row(
    case_id: str, regions: Regions, masks: Tensor, mask: Tensor | None, labels: Tensor | None, scores: Any
) -> CaseRow:
    """Return the row of a case of regions, whose counts are of voxels where each is on; right is right in all."""
    inside = masks if mask is None else masks & mask
    labelled = accuracy = counts = None
    if labels is not None:
        counting, truths = labels != IGNORED, regions.truths(labels) == 1
        right = (masks == truths).all(0)[counting]
        labelled, accuracy = _share(counting), _share(right) if len(right) else None
        counts = tuple(int(each.sum()) for each in truths)
    predicted = tuple(int(each.sum()) for each in inside)
    valid = 1.0 if mask is None else _share(mask)
    dtype = str(scores.dtype).removeprefix("torch.")
    return CaseRow(case_id, tuple(scores.shape), dtype, valid, labelled, accuracy, predicted, counts)


def _share(flags: Tensor) -> float:
    return int(flags.count_nonzero()) / max(flags.numel(), 1)
