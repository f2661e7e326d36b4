r"""From numbers of cases to means with intervals and paired differences, and ``summary.json``, which holds them.

A pipeline's values are one array per repeat, one value per case, NaN where it is not defined. The estimate is the mean
over repeats of the mean over cases; its interval is drawn over groups and repeats (:mod:`segcal.resample`).
"""

import math
from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import numpy as np
from msgspec import UNSET, Meta, Struct, UnsetType

from segcal.documents import read_struct
from segcal.errors import ArtifactError, InputError
from segcal.resample import LEVEL, REPLICATES, Draws, studentised_interval
from segcal.types import Preserves

SCHEMA = 1
SUMMARY = "summary.json"
TOO_FEW = "too few for an interval"

Verdict: TypeAlias = Literal["better", "worse", "no difference", "not defined"]


class Interval(Struct, frozen=True):
    """A value with its interval; None where it is not defined, or where there are too few groups for an interval."""

    value: float | None
    low: float | None
    high: float | None

    def text(self, form: str, missing: str = "–") -> str:
        """Return the value and the interval, if there is one, in a form such as ``.3f``; `missing` without a value.

        >>> Interval(0.5, 0.25, 0.75).text(".2f")
        '0.50 [0.25, 0.75]'
        """
        value, low, high = (
            "" if each is None else f"{each + 0.0:{form}}" for each in (self.value, self.low, self.high)
        )
        return (f"{value} [{low}, {high}]" if low and high else value) or missing


class Estimate(Interval, frozen=True, repr_omit_defaults=True):
    """The mean over so many cases, without the undefined ones; or mean, smallest and largest value over repeats."""

    cases: int | UnsetType = UNSET
    undefined: int | UnsetType = UNSET
    repeats: int | UnsetType = UNSET


class Difference(Interval, frozen=True):
    """A paired difference, the second minus the first, and in how many cases (or repeats) the second is better."""

    cases: int
    undefined: int
    better: int
    equal: int
    worse: int

    def verdict(self, better: Literal["lower", "higher"] = "lower") -> Verdict:
        """Return what it says: it must lie on one side of zero with its whole interval."""
        if self.value is None or self.low is None or self.high is None:
            return "not defined"
        if self.low <= 0 <= self.high:
            return "no difference"
        return "better" if (self.high < 0) == (better == "lower") else "worse"


class Bootstrap(Struct, frozen=True, forbid_unknown_fields=True):
    """The replicates of intervals: it decides how results are summed up, not the results."""

    replicates: Annotated[int, Meta(ge=1, le=1_000_000)] = REPLICATES
    seed: Annotated[int, Meta(ge=0, le=1 << 32)] = 0
    level: Annotated[float, Meta(gt=0, lt=1)] = LEVEL

    def draws(self, units: Sequence[int | Sequence[str]]) -> Draws:
        """Return the replicates for repeats of cases that belong to these units."""
        return Draws(units, self.replicates, self.seed)


def estimate(
    values: Sequence[np.ndarray], draws: Draws, level: float = LEVEL, bounds: tuple[float, float] = (-inf, inf)
) -> Estimate:
    """Return mean and interval of one series, whose ends lie within the bounds of what it can be.

    >>> estimate([np.array([1.0, 2.0, np.nan])], Draws([3])).value
    1.5
    """
    columns = _columns(values, draws)
    undefined = sum(int(np.isnan(column).sum()) for column in columns)
    found = draws.replicates(columns)
    low, high = studentised_interval(found, level)
    if low is not None and high is not None:
        low, high = max(low, bounds[0]), min(high, bounds[1])
    return Estimate(
        None if math.isnan(found.value) else found.value, low, high, sum(draws.sizes) - undefined, undefined
    )


def difference(
    first: Sequence[np.ndarray],
    second: Sequence[np.ndarray],
    draws: Draws,
    better: Literal["lower", "higher"] | None = "lower",
    level: float = LEVEL,
) -> Difference:
    """Return the paired difference second - first of the same cases; with `better` None none is better or worse."""
    gaps = [b - a for a, b in zip(_columns(first, draws), _columns(second, draws), strict=True)]
    found = estimate(gaps, draws, level)
    every = np.concatenate(gaps)
    down, up = int((every < 0).sum()), int((every > 0).sum())
    good, bad = {"lower": (down, up), "higher": (up, down), None: (0, 0)}[better]
    undefined = int(np.isnan(every).sum())
    cases, equal = len(every) - undefined, int((every == 0).sum())
    return Difference(found.value, found.low, found.high, cases, undefined, good, equal, bad)


def over_repeats(values: Sequence[float | None]) -> Estimate:
    """Return mean [min, max] of one value per repeat.

    >>> over_repeats([0.1, 0.3, None])
    Estimate(value=0.2, low=0.1, high=0.3, repeats=2)
    """
    found = [value for value in values if value is not None and not math.isnan(value)]
    if not found:
        return Estimate(None, None, None, repeats=0)
    return Estimate(float(np.mean(found)), min(found), max(found), repeats=len(found))


def _columns(values: Sequence[np.ndarray], draws: Draws) -> list[np.ndarray]:
    columns = [np.asarray(column, float) for column in values]
    sizes = tuple(len(column) for column in columns)
    if sizes != draws.sizes:
        raise InputError(
            f"values has {sizes} cases in its repeats, but the replicates were made for {draws.sizes}. "
            "Give one value per case, NaN where it is not defined."
        )
    return columns


class MetricFacts(Struct, frozen=True):
    """A metric, as :class:`segcal.metrics.Metric` has its facts."""

    title: str
    unit: str
    better: Literal["lower", "higher"] | None
    pooled: bool


class TaskFacts(Struct, frozen=True, omit_defaults=True):
    """A task that was fitted on: how many cases it has, and per repeat its test voxels and the sizes of its subsets.

    `offsets` are the spread of the pooled logits' free energy, by case that was tested in some repeat; `raters` are
    several, in words.
    """

    name: str
    members: int
    num_classes: int
    class_names: tuple[str, ...] | None
    background: bool
    cases: int
    voxels: tuple[int, ...]
    cal: tuple[int, ...]
    val: tuple[int, ...]
    test: tuple[int, ...]
    offsets: dict[str, float | None]
    raters: str = ""


class RowGroup(Struct, frozen=True):
    """Pipelines, by title, that stand together in the main table."""

    title: str
    rows: tuple[str, ...]


class PipelineFacts(Struct, frozen=True):
    """A pipeline: pooling and calibrator, how the paper writes it, and what its calibrator promises."""

    pooling: str
    calibrator: str
    latex: str
    translation_invariant: bool
    preserves: Preserves
    pointwise: bool


class ResultRow(Struct, frozen=True):
    """The numbers of a pipeline that was fitted on a task and tested there, or on the task `test_on`."""

    task: str
    test_on: str
    pipeline: str
    metrics: dict[str, Estimate]
    converged: bool


class Compared(Struct, frozen=True):
    """One metric of a comparison: the second pipeline against the first."""

    verdict: Verdict
    difference: Difference
    of: Literal["cases", "repeats"]


class Comparison(Struct, frozen=True):
    """A matched comparison of two pipelines, by title; `sentence` says the outcome in words."""

    task: str
    test_on: str
    about: str
    first: str
    second: str
    metrics: dict[str, Compared]
    sentence: str


class Summary(Struct, frozen=True):
    """All of ``summary.json``, with its keys as attributes; metrics and pipelines are by name and title."""

    schema: int
    hash: str
    repeats: int
    bootstrap: Bootstrap
    fit: dict[str, int | float | str | bool | None]
    notes: tuple[str, ...]
    metrics: dict[str, MetricFacts]
    tasks: tuple[TaskFacts, ...]
    groups: tuple[RowGroup, ...]
    pipelines: dict[str, PipelineFacts]
    results: tuple[ResultRow, ...]
    comparisons: tuple[Comparison, ...]

    def numbers(self, task: str, pipeline: str, test_on: str = "") -> dict[str, Estimate]:
        """Return the metrics of a pipeline by its title; empty if it is not there."""
        wanted = (task, pipeline, test_on)
        rows = (row for row in self.results if (row.task, row.pipeline, row.test_on) == wanted)
        return next((row.metrics for row in rows), {})


def read_summary(folder: str | Path) -> Summary:
    """Read the summary of a folder of results."""
    path = Path(folder) / SUMMARY
    plain = read_struct(path, object, "Run the benchmark again.")
    if not isinstance(plain, dict) or plain.get("schema") != SCHEMA:
        raise ArtifactError(f"{path} is not a summary of schema {SCHEMA}, but one is needed. Run the benchmark again.")
    return read_struct(path, Summary, "Run the benchmark again.")
