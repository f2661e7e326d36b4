"""Cases that come as arrays: on any device, with gradients or without; read on the CPU and without."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from segcal.arguments import typed
from segcal.cases.base import Case, Cases
from segcal.cases.decision import decision_of
from segcal.cases.kinds import check_kind, like_probabilities
from segcal.cases.region_view import declare_regions
from segcal.checks import as_tensor, check_labels, check_mask
from segcal.errors import InputError
from segcal.pooling import check_pooling
from segcal.raters import Raters
from segcal.types import IGNORED


class Raw(NamedTuple):
    """One case as it was given: `logits` is an array, or a list of them, one per member."""

    logits: Any
    labels: Any = None
    mask: Any = None
    image: Any = None
    spacing: Sequence[float] | None = None


class HeldCases(Cases):
    """Cases of which each comes as arrays; a subclass says where from."""

    def __init__(
        self,
        ids: Sequence[str],
        first: object,
        ignore: int | None,
        groups: Sequence[str] | Mapping[str, str] | None,
        kind: str,
        pooling: str | None,
        class_names: Sequence[str] | None,
        regions: Mapping[str, int | Sequence[int]] | None = None,
        regions_class_order: Sequence[int] | None = None,
        sites: Sequence[str] | Mapping[str, str] | None = None,
        raters: Raters | None = None,
    ) -> None:
        if len(set(ids)) < len(ids):
            twice = next(name for name in ids if ids.count(name) > 1)
            raise InputError(f"ids contains {twice!r} more than once, but ids must be unique. Rename one of the cases.")
        self._ignore, self.raters = ignore, raters
        self._pooling_rule = None if pooling is None else check_pooling(pooling, may_choose=True)
        member = first[0] if isinstance(first, list | tuple) and first else first
        name = f"logits of case {ids[0]!r}"
        self.regions = declare_regions(regions, regions_class_order, check_kind(kind), ignore, class_names)
        class_names = class_names if self.regions is None else self.regions.names
        classes = len(decision_of(self.regions).logits(_on_cpu(member, name), check_kind(kind), name))
        if class_names is not None and len(class_names) != classes:
            raise InputError(
                f"class_names has {len(class_names)} names, but the logits have {classes} classes. "
                "Give one name per class."
            )
        named = (_by_id("groups", groups, ids), _by_id("sites", sites, ids))
        super().__init__(ids, classes, check_kind(kind), self._pooling_rule, class_names, *named)

    @abstractmethod
    def raw(self, case_id: str) -> Raw:
        """Return one case as it was given."""

    @typed
    def read(self, case_id: str) -> Case:
        """Check and return one case."""
        raw = self.raw(case_id)
        kind_warnings: list[str] = []
        members = self._members(raw, case_id, kind_warnings)
        disagreement = None
        if self._pooling_rule is not None and isinstance(raw.logits, list | tuple):
            (logits,), disagreement = self.decision.pool(members, [self._pooling_rule], self.wants_disagreement)
        else:
            logits = next(members)
        space = tuple(logits.shape[1:])
        mask = labels = image = votes = None
        if raw.mask is not None:
            mask = check_mask(_on_cpu(raw.mask, "masks"), f"masks of case {case_id!r}", space)
        if raw.labels is not None:
            name = f"labels of case {case_id!r}"
            given = _on_cpu(raw.labels, name)
            if self.raters is None:
                labels = check_labels(given, name, space, self.num_labels, self._ignore)
                labels = labels if mask is None else labels.where(mask, IGNORED)
            else:
                classes = None if self.regions else self.num_classes
                votes = self.raters.votes(given, name, space, classes, self._ignore).inside(mask)
                labels = votes.labels()
        if raw.image is not None:
            image = _on_cpu(raw.image, f"images of case {case_id!r}")
        spacing = None if raw.spacing is None else tuple(float(size) for size in raw.spacing)
        group = self.groups.get(case_id)
        kind_warning = max(kind_warnings, default="")
        return Case(case_id, logits, labels, mask, spacing, image, group, kind_warning, disagreement, votes)

    def member_logits(self, case_id: str) -> Iterator[Tensor]:
        """Yield the logits of one member after the other, before they are pooled."""
        yield from self._members(self.raw(case_id), case_id, [])

    def _members(self, raw: Raw, case_id: str, kind_warnings: list[str]) -> Iterator[Tensor]:
        name = f"logits of case {case_id!r}"
        several = isinstance(raw.logits, list | tuple)
        if several and self._pooling_rule is None:
            raise InputError(
                f"{name} is a list of {len(raw.logits)} members, but no pooling is declared. "
                "Pass pooling='mean_logits' or pooling='mean_probs'."
            )
        for number, member in enumerate(raw.logits if several else [raw.logits]):
            called = f"member {number} of case {case_id!r}" if several else name
            logits = self.decision.logits(_on_cpu(member, called), self.kind, called)
            kind_warnings.append(self.decision.kind_warning(logits, self.kind))
            yield logits

    @property
    def member_names(self) -> tuple[str, ...]:
        """Numbers of the members."""
        first = self.raw(self.ids[0]).logits if self.ids else None
        return tuple(f"member {number}" for number in range(len(first))) if isinstance(first, list | tuple) else ()


class ArrayCases(HeldCases):
    """Cases held as numpy arrays or tensors.

    Args:
        logits: one array ``(classes, *space)`` per case; or, with `pooling`, a list of such arrays, one per member.
        labels: one integer array ``(*space)`` per case, or None for cases that are only to be calibrated.
        ignore: the label that does not count.
        ids: one name per case; "0", "1", ... if not given.
        masks: one array ``(*space)`` per case, true where the prediction is real.
        spacing: one tuple of voxel sizes per case.
        images: one array ``(channels, *space)`` per case.
        groups: one group name per case; a group is never divided between splits.
        kind: what the numbers are: "logits", "probs" or "sigmoid". Not declared, they are logits, unless they look like
            probabilities: then it must be.
        pooling: how lists of members are pooled, or how these logits were pooled (it is written to artefacts); "best"
            to have it chosen by :func:`segcal.choose`.
        class_names: one name per class.
        regions: the labels of each region, by name, where outputs are sigmoids of regions: `kind` is then "sigmoid" for
            probabilities or "logits".
        regions_class_order: the label that each region writes into a label map; later ones overwrite.
        sites: one site per case (hospital, city, scanner); a choice then also holds out each of them.
        raters: how the labels of several raters are given: "axis", one map per rater along the first axis; "bits", one
            bit per rater of whole numbers; or "shares", the share of raters for each class, classes first.
        num_raters: how many raters there are, or to how many votes shares are rounded.
        rater_weights: one whole number per rater, instead of 1.

    >>> import numpy as np
    >>> cases = ArrayCases(logits=[np.zeros((2, 4), "float32")], labels=[np.array([0, 1, 1, 255])], ignore=255)
    >>> next(iter(cases)).labels
    tensor([ 0,  1,  1, -1])
    """

    @typed
    def __init__(
        self,
        logits: Sequence[object],
        labels: Sequence[object] | None = None,
        ignore: int | None = None,
        ids: Sequence[str] | None = None,
        masks: Sequence[object] | None = None,
        spacing: Sequence[tuple[float, ...] | None] | None = None,
        images: Sequence[object] | None = None,
        groups: Sequence[str] | Mapping[str, str] | None = None,
        kind: str | None = None,
        pooling: str | None = None,
        class_names: Sequence[str] | None = None,
        regions: Mapping[str, int | Sequence[int]] | None = None,
        regions_class_order: Sequence[int] | None = None,
        sites: Sequence[str] | Mapping[str, str] | None = None,
        raters: str | None = None,
        num_raters: int | None = None,
        rater_weights: Sequence[int] | None = None,
    ) -> None:
        if len(logits) == 0:
            raise InputError("logits is empty, but at least one case is needed. Pass a list with one array per case.")
        columns = {"labels": labels, "ids": ids, "masks": masks, "spacing": spacing, "images": images}
        for argument, column in columns.items():
            check_length(argument, column, len(logits))
        names = [str(name) for name in (range(len(logits)) if ids is None else ids)]
        if kind is None:
            kind = _undeclared(logits[0], names[0])
        if raters == "axis" and num_raters is None and rater_weights is None and labels is not None:
            num_raters = next((len(as_tensor(each, "labels")) for each in labels if each is not None), None)
        several = Raters.declared(raters, num_raters, rater_weights)
        own = (class_names, regions, regions_class_order, sites, several)
        super().__init__(names, logits[0], ignore, groups, kind, pooling, *own)
        given = [[None] * len(logits) if column is None else column for column in (labels, masks, images, spacing)]
        rows: Iterator[Any] = zip(logits, *given, strict=True)
        self._raw = {name: Raw(*row) for name, row in zip(names, rows, strict=True)}

    def raw(self, case_id: str) -> Raw:
        """Return one case as it was given."""
        return self._raw[case_id]


def _by_id(
    argument: str, names: Sequence[str] | Mapping[str, str] | None, ids: Sequence[str]
) -> Mapping[str, str] | None:
    if names is None or isinstance(names, Mapping):
        return names
    check_length(argument, names, len(ids))
    return dict(zip(ids, map(str, names), strict=True))


def check_length(argument: str, column: Sequence[object] | None, cases: int) -> None:
    """Refuse a column that has not one entry per case."""
    if column is not None and len(column) != cases:
        raise InputError(f"{argument} has {len(column)} entries, but logits has {cases} cases. Give one entry a case.")


def _undeclared(first: object, case_id: str) -> str:
    scores = first[0] if isinstance(first, list | tuple) and first else first
    if like_probabilities(scores):
        raise InputError(
            f"kind is not declared, but logits of case {case_id!r} lie in 0 to 1 and sum to 1 as probabilities do. "
            "Pass kind='probs', or kind='logits' if they are logits all the same."
        )
    return "logits"


def _on_cpu(array: object, name: str) -> Tensor:
    values = as_tensor(array, name).detach().cpu()
    return values.float() if values.dtype == torch.bfloat16 else values  # numpy has no such type
