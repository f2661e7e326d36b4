"""The document that the report page shows and offers for download; ``docs/report.md`` describes its keys.

One type serves an evaluation (:mod:`segcal.report.evaluated`) and a benchmark (:mod:`segcal.studies.document`). Its
tables are reliability curves, classes and bands of a pipeline, from the sums over its test cases. Voxels of all repeats
are counted together. The standard error of a bin's accuracy is that over the cases of one repeat, averaged over
repeats. Repeats share cases, so more of them do not make it smaller.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date
from importlib.metadata import version
from typing import Literal, TypeAlias

import numpy as np
from msgspec import UNSET, Struct, UnsetType, field
from numpy.typing import NDArray

from segcal.fitting.evidence import FitEvidence
from segcal.metrics import Metric
from segcal.report.decided import DecidedSection
from segcal.report.images import Encoded, SeenCase
from segcal.report.verdict import PartCounts, Verdict
from segcal.resample import defined_mean
from segcal.statistics import CaseTables
from segcal.statistics.additive import total_of
from segcal.statistics.reliability import Curve, CurveSpread, accuracy_error, accuracy_interval
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
# Curves of so many classes are kept, those with most true voxels.
MOST_CLASSES = 24
# Bins of reliability diagrams, and what they are drawn of.
BINS = 15
REGIONS = ("all", "foreground")
DIGITS = 5
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
    """A class: Dice of all voxels together, and the calibration of its probability."""

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
    """Some of the names of the cases that had one use."""

    count: int
    names: list[str]


class ClassEvidence(Struct, frozen=True):
    """The evidence of a fit in one class: how many groups (patients, videos) have it, and about how many voxels."""

    name: str
    groups: int
    voxels: int

    @classmethod
    def rows(cls, found: FitEvidence, names: Sequence[str] | None) -> "tuple[ClassEvidence, ...]":
        """Return the evidence of all classes."""
        titles = names or [str(number) for number in range(len(found.class_groups))]
        return tuple(cls(*row) for row in zip(titles, found.class_groups, found.class_voxels, strict=True))


class CalibratorFacts(Struct, omit_defaults=True):
    """The origin of a task's chosen calibrator, and the evidence per class of its fit to so many groups."""

    pipeline: str
    pooling: str
    certificate: Certified
    audit: AuditFacts | None
    cases: dict[str, CaseNames] | None = None
    evidence: tuple[ClassEvidence, ...] = ()
    groups: int = 0


class Provenance(Struct, omit_defaults=True, kw_only=True):
    """The origin of the numbers: data, splits, seeds, versions."""

    segcal: str
    fingerprints: dict[str, str]
    protocol_hash: str | None = None
    seed: int | None = None
    repeats: int | None = None
    bootstrap: Bootstrap | None = None
    fit: dict[str, int | float | str | bool | None] | None = None
    metrics: list[str] | None = None
    calibrators: dict[str, CalibratorFacts] | None = None


class TrustImage(Struct, omit_defaults=True):
    """One structure of a case on one slice: 1 outer mask, 2 mask, 3 inner mask; over the image, if there is one."""

    case: str
    structure: str
    why: str
    index: int
    slices: int
    levels: Encoded
    image: Encoded | None = None


class TrustSection(Struct):
    """Trust in structures: rows with what to look at first, and images of the first of them."""

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
    images: list[TrustImage]
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
    decided: DecidedSection | UnsetType = UNSET
    date: str = field(default_factory=lambda: date.today().isoformat())


def metric_words(metrics: Mapping[str, Metric]) -> dict[str, MetricWords]:
    """Return the metrics that have plain words, in the order of the table's columns."""
    words = {}
    for name in dict.fromkeys((*FIRST_COLUMNS, *MORE_COLUMNS, *metrics)):
        if name in metrics and (m := metrics[name]).plain:
            explained = f"{m.sentence} ({m.convention}.)" if m.convention else m.sentence
            shown, percent = name in FIRST_COLUMNS, m.unit == "fraction"
            words[name] = MetricWords(m.plain, explained, shown, percent, m.better, m.pooled, name)
    return words


def thinned(tables: CaseTables) -> CaseTables:
    """Return the tables that figures need: reliability of all voxels and of foreground, one binning of the bands."""
    bands = tables.bands
    return replace(
        tables,
        reliability={
            bins: {name: regions[name] for name in (REGIONS if bins == BINS else REGIONS[:1])}
            for bins, regions in tables.reliability.items()
        },
        classwise=None if tables.classwise is None else {"all": tables.classwise["all"]},
        bands=None if bands is None else replace(bands, curves={BINS: bands.curves[BINS]}),
        surface=None,
    )


def curves_of(tables: CaseTables) -> dict[str, Curve]:
    """Return the curves of reliability diagrams that are there: "all", "foreground", "classes" and "bands"."""
    found = {name: curve for name, curve in tables.reliability[BINS].items() if name in REGIONS}
    if tables.classwise is not None:
        found["classes"] = tables.classwise["all"]
    if tables.bands is not None:
        found["bands"] = tables.bands.curves[BINS]
    return found


def pipeline_curves(
    repeats: Sequence[Mapping[str, Curve]],
    spreads: Sequence[Mapping[str, CurveSpread]],
    level: float,
    classes: Sequence[int] = (),
) -> Curves:
    """Return the curves of a pipeline, with intervals of this level.

    `repeats` has the curves of each repeat, named as in :class:`Curves`, those of "classes" and "bands" stacked, of
    which these `classes` are kept. `spreads` has their spread over cases, without which there is no interval.
    """
    found: dict[str, CurveLists | list[CurveLists]] = {}
    for name in repeats[0]:
        own = [curves[name] for curves in repeats]
        total = total_of({str(number): curve for number, curve in enumerate(own)})
        known = [(curve, spread[name]) for curve, spread in zip(own, spreads, strict=True) if name in spread]
        errors = [accuracy_error(curve, spread) for curve, spread in known]  # an older version did not keep them
        error = defined_mean(np.stack(errors), axis=0) if errors else np.full(total.count.shape, np.nan)
        low, high = accuracy_interval(total, error, level)
        if total.count.ndim == 1:
            found[name] = _lists(total, low, high)
        else:  # of bands the last holds voxels without a boundary
            kept = classes if name == "classes" else range(len(total.count) - 1)
            found[name] = [_lists(total[number], low[number], high[number]) for number in kept]
    return Curves(**found)  # type: ignore[arg-type]


def shown_classes(tables: CaseTables) -> list[int]:
    """Return the classes whose curves are kept: all, or of many those with most true voxels, in their own order."""
    voxels = tables.confusion.count.sum(axis=1)
    return sorted(np.argsort(-voxels, kind="stable")[:MOST_CLASSES].tolist())


def class_rows(tables: CaseTables) -> list[ClassRow]:
    """Return a row for every class."""
    count = tables.confusion.count
    truth, predicted, both = count.sum(axis=1), count.sum(axis=0), np.diag(count)
    rows = []
    for number in range(tables.num_classes):
        either = int(truth[number] + predicted[number])
        row = ClassRow(int(truth[number]), round(2 * int(both[number]) / either, DIGITS) if either else None)
        if tables.classwise is not None:
            curve = tables.classwise["all"][number]
            total = max(int(curve.count.sum()), 1)
            row.error = round(float(np.abs(curve.right - curve.confidence).sum() / total), 7)
            row.mean_probability = round(float(curve.confidence.sum() / total), 7)
            row.frequency = round(int(curve.right.sum()) / total, 7)
        rows.append(row)
    return rows


def band_rows(tables: CaseTables, flips: NDArray[np.int64]) -> list[BandRow]:
    """Return a row for every band of distance from a boundary; `flips` ``(bands, kinds)`` counts them."""
    if tables.bands is None:
        return []
    curves = tables.bands.curves[BINS]
    rows = []
    for number, edge in enumerate(tables.bands.edges):
        voxels = int(curves.count[number].sum())
        confidence = round(float(curves.confidence[number].sum()) / voxels, 7) if voxels else None
        accuracy = round(int(curves.right[number].sum()) / voxels, 7) if voxels else None
        rows.append(BandRow(edge, voxels, confidence, accuracy, int(flips[number].sum())))
    return rows


def _lists(curve: Curve, low: NDArray[np.float64], high: NDArray[np.float64]) -> CurveLists:
    share = np.maximum(curve.count, 1)
    columns = [
        [round(float(value), DIGITS) if filled and not np.isnan(value) else None
         for value, filled in zip(column, curve.count > 0, strict=True)]
        for column in (curve.confidence / share, curve.right / share, low, high)
    ]  # fmt: skip
    return CurveLists(curve.count.tolist(), *columns)
