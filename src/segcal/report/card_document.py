"""The form of a calibration card.

The sections have the names of a Hugging Face model card and of the model card that the FDA's draft guidance of January
2025 suggests (docket FDA-2024-D-4488), so that either can take them: description, intended use, data (of calibration,
tuning and evaluation apart), performance with intervals and by subgroup, limitations, monitoring. A metric is stated
with what Metrics Reloaded asks for: unit, direction, and how many cases have no value.
"""

from collections.abc import Sequence

from msgspec import Struct

from segcal.fitting.evidence import FitEvidence
from segcal.summary import Difference, Estimate

SCHEMA = 1


class CaseSet(Struct, frozen=True):
    """Some cases: how many, and the hash of each, so that only who has the names can look them up."""

    cases: int
    case_sha256: tuple[str, ...]


class ClassEvidence(Struct, frozen=True):
    """What the fit rests on in one class: how many groups (patients, videos) have it, and about how many voxels."""

    name: str
    groups: int
    voxels: int

    @classmethod
    def rows(cls, found: FitEvidence, names: Sequence[str] | None) -> "tuple[ClassEvidence, ...]":
        """Return the evidence of all classes."""
        titles = names or [str(number) for number in range(len(found.class_groups))]
        return tuple(cls(*row) for row in zip(titles, found.class_groups, found.class_voxels, strict=True))


class CardDescription(Struct, frozen=True):
    """What was calibrated, and how.

    Attributes:
        calibrator: its name in the registry.
        options: what it was made with, as Python writes it.
        num_classes: C.
        class_names: one per class, or None.
        parameters: how many numbers were fitted.
        input_kind: what its inputs are: "logits", "probs" or "sigmoid".
        pooling: how members were pooled before; None if that is not known.
        fit_method: how it was fitted.
        voxels: how many were used.
        voxels_available: of how many labelled ones.
        kkt_residual: how far from the optimum; None where the method has no such number.
        converged: whether the fit met its tolerance.
        data_fingerprint: digest of the cases it was fitted to.
        groups: how many groups of cases those are; 0 if an older segcal fitted it.
        classes: what the fit rests on, class by class; nothing of regions.
        held_out_parts: groups of each declared site, or else of each cluster of groups, that the choice held out.
        sites_declared: whether those parts were declared.
        digest: of the calibrator itself; results that were measured with it carry the same.
    """

    calibrator: str
    options: dict[str, str]
    num_classes: int
    class_names: tuple[str, ...] | None
    parameters: int
    input_kind: str
    pooling: str | None
    fit_method: str
    voxels: int
    voxels_available: int
    kkt_residual: float | None
    converged: bool
    data_fingerprint: str
    digest: str = ""
    groups: int = 0
    classes: tuple[ClassEvidence, ...] = ()
    held_out_parts: tuple[int, ...] = ()
    sites_declared: bool = False


class Promise(Struct, frozen=True):
    """One promise: whether it is made, whether it holds, and how that is known."""

    promise: str
    promised: bool | str
    holds: bool
    evidence: str
    statement: str


class CardMetric(Struct, frozen=True):
    """One metric of some cases, before and after calibration, and the paired change."""

    type: str
    name: str
    unit: str
    better: str | None
    before: Estimate
    after: Estimate
    change: Difference


class Performance(Struct, frozen=True):
    """The metrics of the cases of a subgroup, and how many groups they belong to."""

    subgroup: str
    cases: int
    metrics: tuple[CardMetric, ...]
    groups: int | None = None


class Monitoring(Struct, frozen=True):
    """The labelled cases that new ones are compared with, and the levels that so many draws support.

    Attributes:
        reference_cases: how many.
        reference_draws: how many groups of them: patients, videos.
        reference_source: how they stand to the fit.
        trust_levels: of intervals that :func:`segcal.trust` can promise, and of masks by :func:`segcal.decide`.
        regions: whether they are of regions, of which :func:`segcal.decide` alone makes use.
        object_cases: how many labelled cases :func:`segcal.objects` compares with.
    """

    reference_cases: int
    reference_draws: int
    reference_source: str
    trust_levels: tuple[float, ...]
    regions: bool = False
    object_cases: int = 0


class Card(Struct, frozen=True):
    """A calibration card.

    Attributes:
        schema: version of this form.
        segcal: version of the library.
        dataset: what the evaluated cases are called.
        description: the calibrator and its fit.
        intended_use: what it is for.
        not_valid_for: what it is not for.
        calibration_data: the cases it was fitted to.
        tuning_data: the cases on which it was chosen.
        evaluation_data: the cases of `performance`; none of them had a part in the fit.
        level: of the intervals.
        promises: what it promises.
        performance: all held-out cases first, then subgroups.
        monitoring: what it remembers for trust and monitoring; None if it was not asked to.
        notes: what a reader should know of the numbers.
    """

    schema: int
    segcal: str
    dataset: str
    description: CardDescription
    intended_use: str
    not_valid_for: tuple[str, ...]
    calibration_data: CaseSet
    tuning_data: CaseSet
    evaluation_data: CaseSet
    level: float
    promises: tuple[Promise, ...]
    performance: tuple[Performance, ...]
    monitoring: Monitoring | None
    notes: tuple[str, ...] = ()
