"""A case, and the interface through which every source of cases is read.

A :class:`Cases` is an ordered collection of ids that reads one case at a time. It never holds more than the one
it was asked for. Everything that fits, evaluates or applies takes a ``Cases`` and nothing else.

Compiled loops do not look where they read. So the result of any :meth:`Cases.read` is checked before anything works on
it (:meth:`Cases.checked`): shapes, and the smallest and largest value of logits and labels.
"""

import copy
import hashlib
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from segcal.arguments import typed
from segcal.cases.decision import MaskDecision, decision_of
from segcal.cases.kept import Kept
from segcal.cases.split import Grouping, Split, check_nested, draw_groups, resolve_groups
from segcal.checks import as_tensor, check_case_logits, check_image, check_labels, check_spacing
from segcal.errors import InputError
from segcal.names import clean, clean_message
from segcal.pooling import BEST, POOLED
from segcal.raters import Raters, Votes
from segcal.regions import Regions
from segcal.types import IGNORED, Context, Kind

# The origin of predictions that cross-validation made: each case by the one network that did not see it.
SINGLE_FOLDS = "single folds"


class CaseError(InputError):
    """One case (`case_id`) is not usable, for a `reason`; the others may be."""

    def __init__(self, case_id: str, reason: str) -> None:
        super().__init__(f"case {case_id!r}: {reason}")
        self.case_id = case_id
        self.reason = clean_message(reason)

    def __reduce__(self) -> tuple[type["CaseError"], tuple[str, str]]:  # so that it survives a worker process
        return CaseError, (self.case_id, self.reason)


@contextmanager
def naming_case(case_id: str) -> Iterator[None]:
    """Let what is wrong with an input name its case."""
    try:
        yield
    except CaseError:
        raise
    except InputError as error:
        raise CaseError(case_id, str(error)) from None


@dataclass(frozen=True)
class Case:
    """One image or volume with everything that is known about it.

    Attributes:
        id: its name, unique within a collection.
        logits: ``(classes, *space)``; pooled over members. Log-probabilities where only probabilities exist. Of
            regions, ``(regions, *space)``, the logits of their sigmoids.
        labels: ``(*space)`` int64 with :data:`segcal.types.IGNORED` where a voxel does not count (the ignore label,
            or outside `mask`); None for a case that is only to be calibrated. Of several raters, the majority.
        mask: ``(*space)`` bool, True where the prediction is real (inside the crop or the field of view), or None.
        spacing: the voxel size along each axis of space, or None.
        image: ``(channels, *space)`` or None.
        group: what must stay in one split (patient, video, site), or None.
        disagreement: ``(*space)``, how much the members disagree, or None where it was not asked for or is not known;
            of regions, ``(regions, *space)``.
        kind_warning: a sentence that says why the scores are probably not of the declared kind; empty without a reason.
        votes: the labels of several raters, or None for one.
        mean_gap: what calibrators are told of the whole scene, where this is a window of one.
    """

    id: str
    logits: Tensor
    labels: Tensor | None = None
    mask: Tensor | None = None
    spacing: tuple[float, ...] | None = None
    image: Tensor | None = None
    group: str | None = None
    kind_warning: str = ""
    disagreement: Tensor | None = None
    votes: Votes | None = None
    mean_gap: Tensor | None = None

    @property
    def doubt(self) -> str:
        """Deprecated: the old name of `kind_warning`."""
        text = (
            "`Case.doubt` is the old name of `Case.kind_warning`, which is needed from the next release on. Use that."
        )
        warnings.warn(text, FutureWarning, stacklevel=2)
        return self.kind_warning

    @property
    def context(self) -> Context:
        """Inputs of a calibrator beside the logits, as a batch of one."""
        parts = (self.image, self.disagreement, self.mask)
        image, disagreement, valid = (None if part is None else part[None] for part in parts)
        return Context(image, disagreement, valid, self.mean_gap)

    def by_rater(self) -> "list[Case]":
        """Return the case as each rater labelled it; as it is where voxels have one label."""
        votes = self.votes
        if votes is None or votes.marks is None:
            return [self]
        there = (votes.marks >= 0).any(0)
        return [replace(self, labels=votes.labels(own), votes=None) for own in votes.marks.T[there]]


class Cases(ABC):
    """An ordered collection of cases, read one at a time.

    Attributes:
        ids: the names of the cases, in order.
        num_classes: C; of regions, how many.
        regions: what the outputs are where they are regions and not classes: then the decision is one per region.
        kind: what the numbers on disk are; `Case.logits` is always in the log domain.
        pooling: the name of the pooling that makes `Case.logits`, or None if it is not known; "best" if it is to be
            chosen, in which case nothing can be read before :meth:`pooled`.
        class_names: one name per class, or None.
        groups: the group of each case that has one, by id.
        grouping: the pattern that groups were declared by; "" for a table, None without groups.
        sites: where each case comes from (hospital, city, scanner), by id, if that is declared; a group has one site.
        origin: :data:`SINGLE_FOLDS`, where the files say so; "" where nothing is known.
        wants_disagreement: whether `Case.disagreement` is to be filled (:meth:`with_disagreement`).
        kept: what was read and is kept for whoever reads the same cases, or parts of them, again.
        aspect: what of the cases is seen, where it is not all, such as one region.
        raters: what is declared of several raters; None where each voxel has one label.
        in_threads: whether a case may be read in another thread; the code of a user may not be made for it.
    """

    _pooling_rule: str | None = None
    grouping: str | None = None
    origin: str = ""
    wants_disagreement: bool = False
    regions: Regions | None = None
    kept: Kept | None = None
    aspect: str = ""
    raters: Raters | None = None
    in_threads: bool = False

    def __init__(
        self,
        ids: Sequence[str],
        num_classes: int,
        kind: Kind,
        pooling: str | None = None,
        class_names: Sequence[str] | None = None,
        groups: Mapping[str, str] | None = None,
        sites: Mapping[str, str] | None = None,
    ) -> None:
        self.ids: tuple[str, ...] = tuple(ids)
        self.num_classes = num_classes
        self.kind = kind
        self.pooling = pooling
        self.class_names = None if class_names is None else tuple(clean(str(name)) for name in class_names)
        self.groups: dict[str, str] = {case_id: clean(name) for case_id, name in (groups or {}).items()}
        self.grouping = "" if self.groups else None
        self.sites: dict[str, str] = {case_id: clean(name) for case_id, name in (sites or {}).items()}
        check_nested(self.groups, self.sites)

    @abstractmethod
    def read(self, case_id: str) -> Case:
        """Read one case."""

    def checked(self, case_id: str) -> Case:
        """Read one case, and refuse what does not fit together."""
        case = self.read(case_id)
        with naming_case(case_id):
            logits = as_tensor(case.logits, "logits").detach()
            check_case_logits(logits, "logits", self.num_classes, least=self.decision.fewest)
            space, labels = tuple(logits.shape[1:]), case.labels
            if labels is not None:
                labels = check_labels(as_tensor(labels, "labels"), "labels", space, self.num_labels, IGNORED)
            if case.votes is not None and tuple(case.votes.code.shape) != space:
                raise InputError(
                    f"votes has shape {tuple(case.votes.code.shape)}, but {space} is needed, like its logits. Declare "
                    "raters where the cases are opened."
                )
            if case.image is not None:
                check_image(as_tensor(case.image, "image"), "image", space)
            check_spacing(case.spacing, len(space))
            needed = self.decision.mask_shape(tuple(logits.shape))
            if case.disagreement is not None and tuple(case.disagreement.shape) != needed:
                raise InputError(
                    f"disagreement has shape {tuple(case.disagreement.shape)}, but {needed} is needed, like its "
                    "logits. Give one value per voxel."
                )
        return replace(case, logits=logits, labels=labels)

    def member_logits(self, case_id: str) -> Iterator[Tensor]:
        """Yield the logits of one member after the other, before they are pooled; none where they are not known."""
        yield from ()

    def member_decisions(self, case_id: str) -> Iterator[Tensor]:
        """Yield the mask of one member after the other; none where they are not known."""
        for member in self.member_logits(case_id):
            yield self.decision.mask(member)

    @property
    def member_names(self) -> tuple[str, ...]:
        """Names of the members of the ensemble; empty where they are not known."""
        return ()

    def __repr__(self) -> str:
        pooled = "" if self.pooling in (None, "single") else f", pooled by {self.pooling}"
        what = f"{self.num_classes} {self.decision.titles}"
        return f"{type(self).__name__}: {len(self)} cases of {what}, {self.kind}{pooled}"

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[Case]:
        for case_id in self.ids:
            yield self.checked(case_id)

    @typed
    def subset(self, ids: Iterable[str]) -> Self:
        """Return the cases with these ids, in the order of this collection."""
        wanted = set(ids)
        missing = sorted(wanted - set(self.ids))
        if missing:
            raise InputError(f"ids contains {missing[0]!r}, but there is no such case among {len(self)}. Check `.ids`.")
        chosen = copy.copy(self)
        chosen.ids = tuple(case_id for case_id in self.ids if case_id in wanted)
        return chosen

    @property
    def poolings(self) -> tuple[str | None, ...]:
        """The poolings among which a choice is free: the one that was declared, or all."""
        return POOLED if self.pooling == BEST else (self.pooling,)

    @typed
    def pooled(self, how: str | None) -> Self:
        """Return the same cases with one of :attr:`poolings`."""
        if how not in self.poolings:
            raise InputError(f"pooling is {how!r}, but these cases are pooled by {self.pooling!r}. Open them with it.")
        if how == self.pooling:
            return self
        chosen = copy.copy(self)
        chosen.pooling = chosen._pooling_rule = how
        return chosen

    def keeping(self, room: int = 0) -> Self:
        """Return the same cases, which keep what is read of them in so many bytes (:mod:`segcal.cases.kept`)."""
        chosen = copy.copy(self)
        chosen.kept = Kept(room)
        return chosen

    def with_disagreement(self) -> Self:
        """Return the same cases that also say where their members disagree; None where there is one network."""
        chosen = copy.copy(self)
        chosen.wants_disagreement = True
        return chosen

    @property
    def decision(self) -> MaskDecision:
        """The decision rule for each voxel, and all that follows from it."""
        return decision_of(self.regions, self.num_classes)

    @property
    def num_labels(self) -> int:
        """The number of possible labels; those that belong to no region are where none is."""
        return self.decision.num_labels

    @property
    def has_offset(self) -> bool:
        """Whether `Case.logits` still carry the network's offset; a softmax, or a mean of softmaxes, removes it."""
        return self.kind == "logits" and self.pooling != "mean_probs" and self.decision.has_offset

    def require_offset(self, calibrator: str, translation_invariant: bool) -> None:
        r"""Refuse a calibrator that needs the offset of the logits where these cases have lost it.

        A softmax throws the offset :math:`F(z) = \log\sum_c e^{z_c}` away: of probabilities, :math:`\log p = z - F(z)`
        is all that can be had. A calibrator that depends on the offset (vs, ms, lts) would be fitted to numbers that
        are not the network's. On real logits it would give other results.
        """
        if translation_invariant or self.has_offset:
            return
        reason = "pooling is 'mean_probs'" if self.pooling == "mean_probs" else f"kind is {self.kind!r}"
        raise InputError(
            f"calibrator {calibrator!r} depends on the offset of the logits, but {reason}, so the offset is gone. "
            "Choose a translation-invariant calibrator, or export the logits before the softmax."
        )

    def require_classes(self, what: str) -> None:
        """Refuse regions where only classes are understood."""
        if self.regions is not None:
            raise InputError(
                f"the cases have regions, but {what} is for classes that exclude each other. "
                "Use segcal fit, evaluate, audit, report and apply for regions."
            )

    def require_one_rater(self, what: str) -> None:
        """Refuse several raters where one label per voxel is needed."""
        if self.raters is not None:
            raise InputError(
                f"the cases have several raters, but {what} needs one label per voxel. Open them with the labels of "
                "one rater."
            )

    @typed
    def split(self, cal: int, val: int = 0, seed: int = 0, group: Grouping | None = None) -> Split[Self]:
        """Draw calibration, validation and test cases at random.

        Cases of one group stay together. A group is drawn whole, so with groups `cal` and `val` are filled as far as
        whole groups allow and never exceeded. Groups are those that the collection knows, or `group`. That is a mapping
        from ids, a regular expression whose one group finds it in the id, or the path of a CSV file with the columns
        id, group.
        """
        if cal < 1 or val < 0 or cal + val > len(self):
            raise InputError(
                f"cal + val is {cal} + {val}, but there are {len(self)} cases. "
                "Ask for at least 1 calibration case and no more cases than there are."
            )
        names = self.groups if group is None else resolve_groups(group, self.ids)
        return Split(*(self.subset(part) for part in draw_groups(self.ids, names, cal, val, seed)))

    def fingerprint(self) -> str:
        """Return a short digest of the ids, the class count and the files' sizes: how an artefact names its data."""
        lines = [f"{case_id}{self.size_note(case_id)}" for case_id in sorted(self.ids)]
        text = "\n".join([str(self.decision.task), self.kind, str(self.pooling), *lines])
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]

    def folders(self) -> set[Path]:
        """Return the folders that cases are read from, in full; none for cases that have no files."""
        return set()

    def identity(self, case_id: str) -> str:
        """Return a digest of everything that a case depends on: another one means another case of the same name."""
        case = self.read(case_id)
        facts: tuple[object, ...] = (self.num_classes, self.kind, self.pooling, self.class_names, case.spacing)
        facts = (*facts, case.group, *filter(None, [self.regions, self.raters]))
        digest = hashlib.sha256(repr(facts).encode())
        votes = [] if case.votes is None else [case.votes.code, torch.from_numpy(case.votes.count)]
        for values in (case.logits, case.labels, case.mask, case.image, *votes):
            digest.update(repr(None if values is None else (values.shape, values.dtype)).encode())
            if values is not None:
                digest.update(values.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def size_note(self, case_id: str) -> str:
        """Return the sizes of the case's files as text; empty for cases that have no files."""
        return ""
