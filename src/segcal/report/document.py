"""The document that the report page shows and offers for download; ``docs/report.md`` describes its keys.

One type, whether it is about an evaluation (:mod:`segcal.report.evaluated`) or a benchmark
(:mod:`segcal.studies.document`).
"""

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Literal, TypeAlias

from msgspec import UNSET, Struct, UnsetType, field

from segcal.fitting.evidence import FitEvidence
from segcal.metrics import Metric
from segcal.report.pictures import Encoded, SeenCase
from segcal.report.verdict import PartCounts, Verdict
from segcal.summary import Bootstrap, Estimate, Interval
from segcal.trust.result import BiomarkerRow, CaseVerdict, TrustRow
from segcal.types import Preserves

SCHEMA = 1
POOLING_TITLES = {"single": "first network", "mean_probs": "mean probabilities", "mean_logits": "mean scores"}
# The first columns of the table are shown at once, the others on demand; metrics that are not named here follow.
FIRST_COLUMNS = ("ece", "ba_ece", "ace", "nll", "dice", "flip_rate")
MORE_COLUMNS = (
    "ece_boundary", "ece_foreground", "ece_wrong", "cece", "brier", "accuracy", "miou", "harmful_flips",
    "beneficial_flips",
)  # fmt: skip
# The part of a fit's certificate that a reader of the page can make something of.
CERTIFIED = (
    "method", "converged", "kkt_residual", "nll", "validation_nll", "voxels", "voxels_available", "lam", "mu",
    "active_bounds",
)  # fmt: skip
Certified: TypeAlias = dict[str, str | float | list[str] | None]


class MetricWords(Struct):
    """A metric for readers who know no statistics."""

    title: str
    explained: str
    shown: bool
    percent: bool
    better: Literal["lower", "higher"] | None
    pooled: bool
    name: str


class CalibratorWords(Struct):
    """A calibrator in words."""

    title: str
    about: str = ""


class RowNumber(Interval, frozen=True):
    """An estimate with its interval, and how many cases it is not defined for."""

    undefined: int = 0

    @classmethod
    def of(cls, one: Estimate, digits: int = 17) -> "RowNumber":
        """Return an estimate with so many significant digits."""
        ends = [None if each is None else float(f"{each:.{digits}g}") for each in (one.value, one.low, one.high)]
        return cls(ends[0], ends[1], ends[2], 0 if one.undefined is UNSET else one.undefined)


class PipelineRow(Struct):
    """One pipeline: a row of the table."""

    pipeline: str
    pooling: str
    calibrator: str
    translation_invariant: bool
    preserves: Preserves
    parameters: int
    identifiable: int
    converged: bool
    metrics: dict[str, RowNumber]


class CurveLists(Struct, omit_defaults=True):
    """A reliability curve, one entry per bin; None in empty bins."""

    count: list[int]
    confidence: list[float | None]
    accuracy: list[float | None]
    low: list[float | None] | None = None
    high: list[float | None] | None = None


class Curves(Struct, omit_defaults=True):
    """The curves of a pipeline: of all voxels, of structures, of the shown classes, and of bands of distance."""

    all: CurveLists
    foreground: CurveLists | None = None
    classes: list[CurveLists] | None = None
    bands: list[CurveLists] | None = None


class ClassRow(Struct, omit_defaults=True):
    """A class: Dice of all voxels together, and how honest its probability is."""

    voxels: int
    dice: float | None
    error: float | None = None
    mean_probability: float | None = None
    frequency: float | None = None


class BandRow(Struct):
    """A band of distance from a boundary, which begins `start` voxels off it."""

    start: float = field(name="from")
    voxels: int
    confidence: float | None
    accuracy: float | None
    flips: int


class CaseColumns(Struct):
    """Dice, calibration error and loss of single test cases, by pipeline, in the order of `names`."""

    names: list[str]
    of: int
    dice: dict[str, list[float | None]]
    ece: dict[str, list[float | None]]
    nll: dict[str, list[float | None]]


class TaskSection(Struct, kw_only=True):
    """One view of the page: a task, or another that its calibrators were tested on (`test_on`)."""

    id: str
    task: str
    test_on: str = ""
    classes: list[str]
    shown_classes: list[int] = []
    background: bool
    baseline: str | None
    chosen: str | None
    verdict: Verdict | None
    division: PartCounts
    rows: list[PipelineRow]
    curves: dict[str, Curves]
    per_class: dict[str, list[ClassRow]] = {}
    bands: dict[str, list[BandRow]] = {}
    cases: CaseColumns


class CaseExamples(Struct):
    """The cases of the browser, `of` how many, calibrated with `pipeline`; `temperature` names that of the maps."""

    cases: list[SeenCase]
    of: int
    pipeline: str
    temperature: str | None = None


class AuditFacts(Struct):
    """The audit of a calibrator."""

    passed: bool
    text: str


class CaseNames(Struct):
    """Some of the names of the cases that had one part."""

    count: int
    names: list[str]


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


class CalibratorFacts(Struct, omit_defaults=True):
    """Where a task's chosen calibrator comes from, and the evidence per class of its fit to so many groups."""

    pipeline: str
    pooling: str
    certificate: Certified
    audit: AuditFacts | None
    cases: dict[str, CaseNames] | None = None
    evidence: tuple[ClassEvidence, ...] = ()
    groups: int = 0


class Provenance(Struct, omit_defaults=True, kw_only=True):
    """Where the numbers come from: data, divisions, seeds, versions."""

    segcal: str
    fingerprints: dict[str, str]
    protocol_hash: str | None = None
    seed: int | None = None
    repeats: int | None = None
    bootstrap: Bootstrap | None = None
    fit: dict[str, int | float | str | bool | None] | None = None
    metrics: list[str] | None = None
    calibrators: dict[str, CalibratorFacts] | None = None


class TrustPicture(Struct, omit_defaults=True):
    """One structure of a case on one slice: 1 outer mask, 2 mask, 3 inner mask; over the image, if there is one."""

    case: str
    structure: str
    why: str
    index: int
    slices: int
    levels: Encoded
    image: Encoded | None = None


class TrustSection(Struct):
    """How far structures can be trusted: rows with what to look at first, and pictures of the first of them."""

    level: float
    tau: float | dict[str, float]
    promise: str
    cases: list[CaseVerdict]
    of_cases: int
    flagged_cases: int
    rows: list[TrustRow]
    of: int
    flagged: int
    biomarkers: list[BiomarkerRow]
    pictures: list[TrustPicture]
    alarms: list[str]


class Document(Struct, kw_only=True):
    """Everything that the page shows; `sections` is the key ``places``."""

    schema: int = SCHEMA
    kind: Literal["benchmark", "evaluation", "trust"]
    title: str
    segcal: str = field(default_factory=lambda: version("segcal"))
    level: float
    notes: list[str] = []
    metrics: dict[str, MetricWords] = {}
    poolings: dict[str, str] = field(default_factory=POOLING_TITLES.copy)
    calibrators: dict[str, CalibratorWords] = {}
    sections: list[TaskSection] = field(name="places", default_factory=list)
    comparisons: list[str] = []
    examples: dict[str, CaseExamples] = {}
    rule: str = ""
    provenance: Provenance
    trust: TrustSection | UnsetType = UNSET


def metric_words(metrics: Mapping[str, Metric]) -> dict[str, MetricWords]:
    """Return the metrics that have plain words, in the order of the table's columns."""
    words = {}
    for name in dict.fromkeys((*FIRST_COLUMNS, *MORE_COLUMNS, *metrics)):
        if name in metrics and (m := metrics[name]).plain:
            explained = f"{m.sentence} ({m.convention}.)" if m.convention else m.sentence
            shown, percent = name in FIRST_COLUMNS, m.unit == "fraction"
            words[name] = MetricWords(m.plain, explained, shown, percent, m.better, m.pooled, name)
    return words
