"""Cases from arrays that are already in memory."""

from collections.abc import Iterator, Mapping, Sequence

from torch import Tensor

from segcal.cases.base import Case, Cases
from segcal.cases.kinds import check_kind, like_probabilities, to_log_domain
from segcal.checks import as_tensor, check_labels, check_mask
from segcal.errors import InputError
from segcal.pooling import check_pooling, pool
from segcal.types import IGNORED


class ArrayCases(Cases):
    """Cases held as numpy arrays or tensors.

    Args:
        logits: one array ``(classes, *space)`` a case; or, with `pooling`, a list of such arrays, one a member.
        labels: one integer array ``(*space)`` a case, or None for cases that are only to be calibrated.
        ignore: the label that does not count.
        ids: one name a case; "0", "1", ... if not given.
        masks: one array ``(*space)`` a case, true where the prediction is real.
        spacing: one tuple of voxel sizes a case.
        images: one array ``(channels, *space)`` a case.
        groups: one group name a case; a group is never divided between splits.
        kind: what the numbers are: "logits", "probs" or "sigmoid". Not declared, they are logits, unless they look like
            probabilities: then it must be.
        pooling: how lists of members are pooled, or how these logits were pooled (it is written to artefacts); "best"
            to have it chosen by :func:`segcal.choose`.
        class_names: one name a class.

    >>> import numpy as np
    >>> cases = ArrayCases(logits=[np.zeros((2, 4), "float32")], labels=[np.array([0, 1, 1, 255])], ignore=255)
    >>> next(iter(cases)).labels
    tensor([ 0,  1,  1, -1])
    """

    def __init__(
        self,
        logits: Sequence[object],
        labels: Sequence[object] | None = None,
        ignore: int | None = None,
        ids: Sequence[str] | None = None,
        masks: Sequence[object] | None = None,
        spacing: Sequence[tuple[float, ...]] | None = None,
        images: Sequence[object] | None = None,
        groups: Sequence[str] | None = None,
        kind: str | None = None,
        pooling: str | None = None,
        class_names: Sequence[str] | None = None,
    ) -> None:
        if len(logits) == 0:
            raise InputError("logits is empty, but at least one case is needed. Pass a list with one array a case.")
        names = [str(i) for i in range(len(logits))] if ids is None else [str(name) for name in ids]
        columns = {
            "labels": labels,
            "ids": names,
            "masks": masks,
            "spacing": spacing,
            "images": images,
            "groups": groups,
        }
        for argument, column in columns.items():
            if column is not None and len(column) != len(logits):
                raise InputError(
                    f"{argument} has {len(column)} entries, but logits has {len(logits)} cases. Give one entry a case."
                )
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise InputError(f"ids contains {twice!r} more than once, but ids must be unique. Rename one of the cases.")
        if kind is None:
            kind = _undeclared(logits[0], names[0])
        self._logits = dict(zip(names, logits, strict=True))
        self._columns = {
            key: {} if column is None else dict(zip(names, column, strict=True)) for key, column in columns.items()
        }
        self._ignore = ignore
        self._pooling_rule = None if pooling is None else check_pooling(pooling, may_choose=True)
        super().__init__(
            ids=names,
            num_classes=_count_classes(logits[0], names[0], kind),
            kind=check_kind(kind),
            pooling=self._pooling_rule,
            class_names=class_names,
            groups=_text_values(self._columns["groups"]),
        )
        if class_names is not None and len(class_names) != self.num_classes:
            raise InputError(
                f"class_names has {len(class_names)} names, but the logits have {self.num_classes} classes. "
                "Give one name a class."
            )

    def read(self, case_id: str) -> Case:
        """Check and return one case."""
        doubts: list[bool] = []
        members = self._watched(case_id, doubts)
        several = self._pooling_rule is not None and isinstance(self._logits[case_id], list | tuple)
        logits = pool(members, str(self._pooling_rule)) if several else next(members)
        space = tuple(logits.shape[1:])
        column = {key: values.get(case_id) for key, values in self._columns.items()}
        mask = labels = image = None
        if column["masks"] is not None:
            mask = check_mask(as_tensor(column["masks"], "masks"), f"masks of case {case_id!r}", space)
        if column["labels"] is not None:
            name = f"labels of case {case_id!r}"
            labels = check_labels(as_tensor(column["labels"], name), name, space, self.num_classes, self._ignore)
            if mask is not None:
                labels = labels.where(mask, IGNORED)
        if column["images"] is not None:
            image = as_tensor(column["images"], f"images of case {case_id!r}")
        spacing = column["spacing"]
        return Case(
            id=case_id,
            logits=logits,
            labels=labels,
            mask=mask,
            spacing=None if spacing is None else tuple(float(size) for size in spacing),  # type: ignore[attr-defined]
            image=image,
            group=self.groups.get(case_id),
            like_probs=any(doubts),
        )

    def member_logits(self, case_id: str) -> Iterator[Tensor]:
        """Yield the logits of one member after the other, before they are pooled."""
        raw = self._logits[case_id]
        name = f"logits of case {case_id!r}"
        if not isinstance(raw, list | tuple):
            yield to_log_domain(raw, self.kind, name, self.num_classes)
            return
        if self._pooling_rule is None:
            raise InputError(
                f"{name} is a list of {len(raw)} members, but no pooling is declared. "
                "Pass pooling='mean_logits' or pooling='mean_probs'."
            )
        for number, member in enumerate(raw):
            yield to_log_domain(member, self.kind, f"member {number} of case {case_id!r}", self.num_classes)

    def _watched(self, case_id: str, doubts: list[bool]) -> Iterator[Tensor]:
        for member in self.member_logits(case_id):
            doubts.append(self.kind == "logits" and like_probabilities(member))
            yield member

    @property
    def member_names(self) -> tuple[str, ...]:
        """Numbers of the members."""
        first = self._logits[self.ids[0]] if self.ids else None
        return tuple(f"member {number}" for number in range(len(first))) if isinstance(first, list | tuple) else ()


def _undeclared(first: object, case_id: str) -> str:
    scores = first[0] if isinstance(first, list | tuple) and first else first
    if like_probabilities(scores):
        raise InputError(
            f"kind is not declared, but logits of case {case_id!r} lie in 0 to 1 and sum to 1 as probabilities do. "
            "Pass kind='probs', or kind='logits' if they are logits all the same."
        )
    return "logits"


def _count_classes(first: object, case_id: str, kind: str) -> int:
    member = first[0] if isinstance(first, list | tuple) and first else first
    return to_log_domain(member, check_kind(kind), f"logits of case {case_id!r}").shape[0]


def _text_values(column: Mapping[str, object]) -> dict[str, str]:
    return {key: str(value) for key, value in column.items()}
