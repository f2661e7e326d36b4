"""Looking at every case of a collection before anything is fitted: what is in it, and what is wrong with it.

Nothing stops at the first problem. Each problem becomes a line of the result: damaged files, missing labels, padding
that looks like a prediction, label maps that are not the argmax. Some problems are visible only in all cases
together: mirrored labels, labels of another case, members or cases that are there twice. They are judged from the
profiles of cases.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypedDict, get_args

import numpy as np
from torch import Tensor

from segcal.arguments import typed
from segcal.cases.base import CaseError, Cases
from segcal.cases.decision import MaskDecision, decision_of
from segcal.cases.files import FileCases, RaterFolders
from segcal.cases.formats import Stored
from segcal.cases.loader import as_cases
from segcal.cases.open import open_cases
from segcal.cases.parallel import Workers, map_ids
from segcal.cases.profile import Profile, digest_of, profile, profile_at
from segcal.cases.suspicion import single_folds, suspect_kind
from segcal.cases.watch import Ensemble, Member, Watch, look_at, look_at_case
from segcal.checks import as_tensor, check_mask
from segcal.errors import InputError
from segcal.regions import Regions
from segcal.types import IGNORED

# Fewer cases than this, and intervals are wide and a fit can follow a single case.
ENOUGH_CASES = 25
LISTED = 5  # of the cases that share a problem

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
    profile: Profile | None = None
    members: tuple[Member, ...] = ()


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

    def __str__(self) -> str:
        first, last = self.frame()
        named = [(one, ", ".join(ids[:LISTED]) + ", ..." * (len(ids) > LISTED)) for one, ids in self.digest()]
        return "\n".join([first, *(f"{one.severity}: {ids or 'the folder'}: {one.text}" for one, ids in named), last])

    def frame(self) -> tuple[str, str]:
        """Return what stands above and below the problems: what was read, and whether it is usable."""
        cases, number = f"{self.cases:,} case{'s' * (self.cases != 1)}", self.suspicions
        members = "" if self.members == 1 else f" of {self.members} members ({self.pooling})"
        first = f"{cases}{members}, {self.num_classes} {decision_of(self.regions).titles}"
        hint = f"; look into the {number} suspicion{'s' * (number != 1)} above first" if number else ""
        last = f"usable: every case can be read{hint}" if self.usable else f"{len(self.broken)} of {cases} not usable"
        return f"{first}; format {self.format}, kind {self.kind}", last

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
    watch = Watch(cases.decision.values)
    ensemble = Ensemble(cases.member_names)
    look = partial(check_read, cases) if files is None else partial(check_files, files)
    for case_id, seen in map_ids(cases.ids, look, workers):
        for problem in seen.problems if strict else []:
            if problem.severity == "error":
                raise CaseError(case_id, problem.text)
        result.problems.extend(seen.problems)
        if seen.row is not None:
            result.rows.append(seen.row)
        if seen.profile is not None:
            watch.add(seen.profile)
        ensemble.add(seen.members)
        if progress is not None:
            progress(case_id)
    suspected = watch.found() + ensemble.found() + (suspect_kind(cases) if cases.regions else [])
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
        name = f"{cases.decision.title} {line['class']}" + (f" ({line['name']})" if line["name"] else "")
        if line["labels"] == 0:
            found.append(("warning", f"{name} is in no label map: nothing can be learned or said about it."))
        if line["predicted"] == 0:
            found.append(("note", f"{name} is never predicted."))
    folder = cases.label_folder if isinstance(cases, FileCases) else None
    if isinstance(folder, RaterFolders):
        few = sum(len(folder.of_case(case_id)) < len(folder.raters) for case_id in cases.ids)
        found.append(("note", f"labels are the majority of {len(folder.raters)} raters; {few} cases lack one or more."))
    spare = [] if folder is None else sorted(set(folder.files) - set(cases.ids))
    if spare:
        text = f"{len(spare)} label maps have no prediction and are left out: {', '.join(spare[:5])}"
        found.append(("note", text + (", ..." if len(spare) > 5 else ".")))
    return [Problem(None, severity, text) for severity, text in found]


def check_read(cases: Cases, case_id: str) -> Seen:
    """Check a case that has no files: it is read as it will be used."""
    try:
        case = cases.checked(case_id)
        _refuse_nothing(tuple(case.logits.shape[1:]), case.mask, case.labels)
        members = look_at_case(cases, case_id) if len(cases.member_names) > 1 else ()
    except InputError as error:
        return Seen([_failure(case_id, error)])
    found = _padding(cases, case_id, "it", case.logits.numpy(), case.mask)
    row = _row(case_id, cases.decision, cases.decision.mask(case.logits), case.mask, case.labels, case.logits)
    return Seen(found, row, profile_at(case, cases.decision), members)


def check_files(cases: FileCases, case_id: str) -> Seen:
    """Check the members one after the other, then the labels; the row is that of the first member."""
    problems: list[Problem] = []
    members: list[Member] = []
    stored: Stored | None = None
    mask: Tensor | None = None
    decided: Tensor | None = None
    for number in range(len(cases.members)):
        found = check_member(cases, case_id, number, decided)
        problems += found.problems
        if number == 0:
            stored, mask, decided = found.stored, found.mask, found.map
        if found.map is not None and decided is not None:
            members.append(look_at(found.digest, found.map, decided, cases.decision.values))
    if stored is None or mask is None or decided is None:
        folder = cases.label_folder
        if folder is not None and case_id not in folder.files:  # said even where the scores cannot be read
            problems.append(Problem(case_id, "error", f"{folder.folder} has no label map for it. Add the file."))
        return Seen(problems)
    valid, labels = _read_labels(cases, case_id, stored, tuple(decided.shape), problems)
    row = _row(case_id, cases.decision, mask, valid, labels, cases.members[0].header(case_id))
    if any(problem.severity == "error" for problem in problems):
        return Seen(problems, row)
    digest = b"".join(member.digest for member in members)
    own = profile(case_id, digest, decided, cases.decision.true_map(labels), valid, cases.decision.values)
    return Seen(problems, row, own, tuple(members))


def _read_labels(
    cases: FileCases, case_id: str, stored: Stored, space: tuple[int, ...], problems: list[Problem]
) -> tuple[Tensor | None, Tensor | None]:
    """Return mask and labels, as far as they can be had, and add what is wrong with them."""
    mask = labels = None
    try:
        if stored.mask is not None:
            mask = check_mask(as_tensor(stored.mask, "mask"), "mask", space)
        labels, _, _ = cases.read_labels(case_id, space, stored, mask)
        _refuse_nothing(space, mask, labels)
        if not any(problem.severity == "error" for problem in problems):
            cases.check_geometry(case_id)
    except InputError as error:
        problems.append(Problem(case_id, "error", str(error)))
    return mask, labels


class _Checked(NamedTuple):
    """Problems of a file; if it can be read, what it holds, its mask, the map of that, and a digest of its scores."""

    problems: list[Problem]
    stored: Stored | None = None
    mask: Tensor | None = None
    map: Tensor | None = None
    digest: bytes = b""


def check_member(cases: FileCases, case_id: str, number: int, first: Tensor | None) -> _Checked:
    """Check one member's file of a case; `first` is the map of the first member, whose size all must have."""
    member, decision = cases.members[number], cases.decision
    try:
        stored = cases.read_member(case_id, number)
        logits = cases.to_logits(stored, member, str(member.path(case_id)))
        mask = decision.mask(logits)
        decided = decision.map(mask)
        problems = _kind_warnings(cases, case_id, number, stored, decision.label_map(mask).numpy())
        if kind_warning := cases.kind_warning(logits, member):
            problems.append(Problem(case_id, "warning", f"{member.path(case_id)}: {kind_warning}"))
    except InputError as error:
        return _Checked([_failure(case_id, error)])
    if first is not None and decided.shape != first.shape:
        text = (
            f"{member.path(case_id)} has space {tuple(decided.shape)}, but the first member has {tuple(first.shape)}. "
            "Members of one ensemble must agree: export this one again or leave it out."
        )
        problems.append(Problem(case_id, "error", text))
    return _Checked(problems, stored, mask, decided, digest_of(logits))


def _failure(case_id: str, error: InputError) -> Problem:
    return Problem(case_id, "error", error.reason if isinstance(error, CaseError) else str(error))


def _kind_warnings(cases: FileCases, case_id: str, number: int, stored: Stored, label_map: np.ndarray) -> list[Problem]:
    """Return what is possible but rarely intended."""
    member = cases.members[number]
    path = member.path(case_id)
    found = _padding(cases, case_id, path, np.asarray(stored.values), stored.mask)
    lacking = member.lacking(case_id)
    if lacking:  # of logits this is an error; a probability of 0 may be meant, and where sums are 1 it is
        text = f"{path} {lacking}, which read as 0. Copy the file again if a chunk was lost."
        found.append(Problem(case_id, "warning" if cases.kind == "sigmoid" else "note", text))
    stored_label = member.stored_label(case_id, label_map.shape)
    if stored_label is not None:
        differ = float((stored_label != label_map).mean()) if stored_label.shape == label_map.shape else 1.0
        if differ > 0:
            text = (
                f"{path} has another argmax than the stored label map in {differ:.2%} of the voxels: "
                "post-processing, or another model, made one of them."
            )
            found.append(Problem(case_id, "warning", text))
    return found


def _padding(cases: Cases, case_id: str, name: object, values: np.ndarray, valid: Any) -> list[Problem]:
    padding = cases.decision.padding(values, None if valid is None else np.asarray(valid), cases.kind)
    if padding is None:
        return []
    vector = ", ".join(f"{value:.4g}" for value in padding.vector)
    text = (
        f"{name} holds exactly ({vector}) in {padding.share:.1%} of its voxels: suspected padding, which is no "
        "prediction. Mask it, or export again without it."
    )
    return [Problem(case_id, "error" if cases.kind == "logits" and padding.one_hot else "warning", text)]


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
    case_id: str, decision: MaskDecision, mask: Tensor, valid: Tensor | None, labels: Tensor | None, scores: Any
) -> CaseRow:
    """Return the row of a case; `scores` have a shape and a dtype."""
    labelled = accuracy = counts = None
    if labels is not None:
        counting, targets = labels != IGNORED, decision.targets(labels)
        right = decision.right(mask, targets)[counting]
        labelled, accuracy = _share(counting), _share(right) if len(right) else None
        counts = decision.counts(targets, counting)
    return CaseRow(
        id=case_id,
        shape=tuple(scores.shape),
        dtype=str(scores.dtype).removeprefix("torch."),
        valid=1.0 if valid is None else _share(valid),
        labelled=labelled,
        accuracy=accuracy,
        predicted=decision.counts(mask, valid),
        labels=counts,
    )


def _share(flags: Tensor) -> float:
    return int(flags.count_nonzero()) / max(flags.numel(), 1)
