"""The masks of cases by a rule, and what is expected of them; slab by slab.

A structure is where its probability reaches its threshold, or where the preserved mask has it. A promise is made for
each structure by itself: masks of rules that promise something may overlap, and so may those of regions. All others are
made a label map. A voxel of several masks belongs to the structure whose probability is the largest multiple of its
threshold, and one of none to the background. Where class 0 is a structure too, it belongs to the one with the largest
multiple. What is expected is computed of the masks as they are in the end.

A rule that ranks voxels goes through a case twice and holds the probabilities of its structures in between.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from rich.table import Table
from torch import Tensor

from segcal.cases.base import Case
from segcal.cases.decision import decision_of
from segcal.decisions.base import Floats, Limit, Ranked, Rule
from segcal.decisions.dice import dice_bound
from segcal.evaluation.slabs import score_slabs
from segcal.fitting.certificate import Fitted
from segcal.names import class_titles
from segcal.numerics import winner
from segcal.trust.entry import known_reference
from segcal.trust.result import Printed, plain_table
from segcal.trust.sums import STEP_VALUES, voxel_size

# Voxels that are less probable are in no mask of a rule that ranks them; their sums count.
LEAST = 1e-6


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
class Decisions(Printed):
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

    command, row = "decide", DecisionRow
    rows: list[DecisionRow]
    rule: str
    promise: str
    written: int = 0
    already_there: int = 0
    stale: list[str] = field(default_factory=list)
    masks: Mapping[str, NDArray[np.integer]] = field(default_factory=dict, repr=False)

    def to_plain(self) -> dict[str, object]:
        """Return everything but the masks as dicts, lists and numbers."""
        facts = {"rule": self.rule, "promise": self.promise}
        return {"schema": 1, "made_by": "segcal decide", **facts, "rows": self.rows}

    def parts(self) -> "list[Table | str]":
        """Return the table that is printed, and what it promises."""
        shown = []
        for name in dict.fromkeys(row["structure"] for row in self.rows):
            own = [row for row in self.rows if row["structure"] == name]
            dice = [f"{sum(row[key] for row in own) / len(own):.4f}" for key in ("preserved_dice", "expected_dice")]
            changed, kept = (sum(row[key] for row in own) for key in ("changed_voxels", "preserved_voxels"))
            shown.append([name, *dice, f"{100 * changed / max(kept, 1):.1f} %"])
        return [
            plain_table(("structure", "expected Dice: preserved", self.rule, "voxels changed"), shown),
            self.promise,
        ]


class DecidedCase(NamedTuple):
    """The masks of a case as :class:`Decisions` has them, None where they are in files; and a row per structure."""

    masks: NDArray[np.integer] | None
    rows: list[DecisionRow]


class Decider:
    """Decides on one case after the other; picklable, for several processes. Of regions, all are structures."""

    def __init__(self, fitted: Fitted, rule: Rule, background: bool = True) -> None:
        self.calibrator, self.rule = fitted.calibrator, rule
        self.decision = decision_of(self.calibrator.regions)
        self.structures = self.decision.structures(self.calibrator.num_classes, background)
        names = class_titles(fitted.class_names, self.calibrator.num_classes)
        self.titles = [names[number] for number in self.structures]
        limits = rule.limits(known_reference(fitted, regions=True)) if rule.promise else []
        self.limits = limits[self.structures.start :]
        # Masks of one structure are a label map whatever the rule is.
        self.overlapping = len(self.structures) > 1 and bool(rule.promise or self.decision.overlap)
        self.everywhere = not self.decision.overlap and self.structures.start == 0

    def __call__(self, case: Case) -> DecidedCase:
        """Decide on a case."""
        chosen, size = self.limits or self._choose(case), len(self.structures)
        space = tuple(case.logits.shape[1:])
        values = self.decision.shown_as(self.structures)
        kind = np.uint8 if self.overlapping else np.min_scalar_type(max(values))
        masks = np.zeros((size, *space) if self.overlapping else space, kind)
        sums = np.zeros((9, size))
        for where, probs, kept, inside in self._seen(case):
            reached = torch.stack([_mask(*each) for each in zip(chosen, probs, kept, strict=True)]) & inside
            open_voxels = inside & ~reached.any(0) if self.everywhere else torch.zeros_like(inside)
            found = reached if self.overlapping else _apart(reached, open_voxels, probs, chosen)
            shown = found.cpu().numpy()  # a sum over masks that do not overlap, structure by structure
            masks[where] = (
                shown if self.overlapping else sum(v * m.astype(kind) for v, m in zip(values, shown, strict=True))
            )
            sums += _sums(found, probs.double(), kept, reached)
        return DecidedCase(masks, [self._row(case, *each) for each in zip(self.titles, chosen, sums.T, strict=True)])

    def _seen(self, case: Case) -> Iterator[tuple[Any, Tensor, Tensor, Tensor]]:
        """Yield where a slab is, probabilities and preserved masks of structures, and where anything is predicted."""
        for slab in score_slabs(self.calibrator, case, values=STEP_VALUES):
            scores, logits = slab.scores[0], slab.logits[0]
            probs = self.decision.probabilities(scores)[self.structures.start :]
            kept = self.decision.each(self.decision.mask(logits), self.structures)
            inside = torch.ones_like(kept[0]) if case.mask is None else case.mask[slab.where].to(kept.device)
            yield slab.where, probs * inside, kept & inside, inside

    def _choose(self, case: Case) -> list[Limit]:
        if (of_case := self.rule.of_case) is None:
            return [Limit()] * len(self.structures)
        parts: list[list[Floats]] = [[] for _ in self.structures]
        sums = np.zeros((3, len(parts)))
        for _, probs, kept, _ in self._seen(case):
            exact = probs.double()
            sums += _totals(exact, torch.log1p(-exact), kept)
            for part, own in zip(parts, exact, strict=True):
                part.append(own[own >= LEAST].cpu().numpy())
        return [
            Limit(of_case(Ranked(-np.sort(-np.concatenate(part)), total, log_none, kept > 0)))
            for part, (total, log_none, kept) in zip(parts, sums.T.tolist(), strict=True)
        ]

    def _row(self, case: Case, title: str, limit: Limit, sums: Floats) -> DecisionRow:
        voxels, hit, total, spread, log_none, before, before_hit, changed, lost = map(float, sums)
        size, unit = voxel_size(case.spacing)
        return {
            "case": case.id,
            "structure": title,
            "rule": str(self.rule),
            "threshold": None if limit.threshold is None or math.isinf(limit.threshold) else limit.threshold,
            "guaranteed": limit.guaranteed,
            "expected_dice": 2 * hit / (voxels + total) if voxels else math.exp(log_none),
            "dice_bound": dice_bound(voxels, total, spread) if voxels else 0.0,
            "expected_recall": hit / total if total else None,
            "expected_precision": hit / voxels if voxels else None,
            "preserved_dice": 2 * before_hit / (before + total) if before else math.exp(log_none),
            "voxels": int(voxels),
            "preserved_voxels": int(before),
            "changed_voxels": int(changed),
            "overlap_voxels": int(lost),
            "volume": voxels * size,
            "expected_volume": total * size,
            "unit": unit,
            "note": limit.note,
        }


def _mask(limit: Limit, probs: Tensor, kept: Tensor) -> Tensor:
    if limit.threshold is None:
        return kept
    return probs >= torch.tensor(limit.threshold, dtype=torch.float64).to(probs)


def _apart(masks: Tensor, open_voxels: Tensor, probs: Tensor, chosen: Sequence[Limit]) -> Tensor:
    """Return masks without overlap: a voxel goes where its probability is the largest multiple of the threshold.

    Voxels of several masks go to one of these, and `open_voxels`, which are in none, to any.
    """
    unclear = (masks.sum(0) > 1) | open_voxels
    if not bool(unclear.any()):
        return masks
    limits = torch.tensor([limit.threshold for limit in chosen], dtype=torch.float64, device=probs.device)
    ratios = probs[:, unclear].double() / limits[:, None]
    ratios = torch.where(masks[:, unclear] | open_voxels[unclear], ratios, -1.0)
    apart = masks.clone()
    apart[:, unclear] = torch.nn.functional.one_hot(winner(ratios, axis=0), len(masks)).T.bool()
    return apart


def _sums(masks: Tensor, probs: Tensor, kept: Tensor, reached: Tensor) -> Floats:
    """Return what a row is made of: numbers and probabilities of its mask, of all voxels, and of the preserved mask."""
    everywhere = (probs, probs * (1 - probs), torch.log1p(-probs))
    return _totals(masks, probs * masks, *everywhere, kept, probs * kept, masks ^ kept, masks ^ reached)


def _totals(*columns: Tensor) -> Floats:
    return torch.stack([each.flatten(1).sum(1, dtype=torch.float64) for each in columns]).cpu().numpy()
