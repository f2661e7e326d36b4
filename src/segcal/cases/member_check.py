"""Looking at one member's file of one case: can it be read, and what about it is possible but seldom meant."""

from typing import NamedTuple

import numpy as np
from torch import Tensor

from segcal.cases.base import CaseError
from segcal.cases.check_result import Problem
from segcal.cases.files import FileCases
from segcal.cases.formats import Stored
from segcal.cases.glance import digest_of
from segcal.cases.kinds import find_padding, like_probabilities, to_log_domain
from segcal.errors import InputError
from segcal.numerics import winner


class Checked(NamedTuple):
    """What is wrong with a file; if it can be read, what it holds, its winners, and a digest of its scores."""

    problems: list[Problem]
    stored: Stored | None = None
    decision: Tensor | None = None
    digest: bytes = b""


def check_member(cases: FileCases, case_id: str, number: int, first: Tensor | None) -> Checked:
    """Check one member of a case.

    Args:
        cases: all cases.
        case_id: which case.
        number: which member.
        first: the winners of the first member, whose size all must have; None if it is the first, or not readable.
    """
    member = cases.members[number]
    try:
        stored = cases.read_member(case_id, number)
        kind = member.values_kind or cases.kind
        logits = to_log_domain(stored.values, kind, str(member.path(case_id)), cases.num_classes)
        decision = winner(logits, axis=0)
        problems = _doubts(cases, case_id, number, stored, decision.numpy())
    except InputError as error:
        reason = error.reason if isinstance(error, CaseError) else str(error)
        return Checked([Problem(case_id, "error", reason)])
    if first is not None and decision.shape != first.shape:
        text = (
            f"{member.path(case_id)} has space {tuple(decision.shape)}, but the first member has {tuple(first.shape)}. "
            "Members of one ensemble must agree: export this one again or leave it out."
        )
        problems.append(Problem(case_id, "error", text))
    return Checked(problems, stored, decision, digest_of(logits))


def _doubts(cases: FileCases, case_id: str, number: int, stored: Stored, decision: np.ndarray) -> list[Problem]:
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
    if member.values_kind is None and cases.kind == "logits" and like_probabilities(values):
        text = (
            f"{path} is declared as logits, but all its values lie in 0 to 1 and sum to 1. Declare kind='probs' if so."
        )
        found.append(Problem(case_id, "warning", text))
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
