"""``summary.json``: the numbers of a benchmark with their intervals. Tables, figures and the page are made from it.

Attributes are named as the keys of the file.
"""

from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from segcal.documents import parse_json
from segcal.errors import ArtifactError
from segcal.types import Preserves

SCHEMA = 1
SUMMARY = "summary.json"
REPLICATES = 2000
LEVEL = 0.95

Verdict = Literal["better", "worse", "no difference", "not defined"]


class Interval(Struct, frozen=True):
    """A value with its interval; None where it is not defined."""

    value: float | None
    low: float | None
    high: float | None


class Estimate(Interval, frozen=True, repr_omit_defaults=True):
    """A mean over cases; or, of a number that there is one of per repeat, mean, smallest and largest over repeats.

    Attributes:
        cases: how many values it is the mean of.
        undefined: how many values were not defined and left out.
        repeats: how many repeats it is the mean of, instead of cases.
    """

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


class Bootstrap(Struct, frozen=True, forbid_unknown_fields=True):
    """The bootstrap of the intervals: it decides how results are summed up, not the results."""

    replicates: Annotated[int, Meta(ge=1, le=1_000_000)] = REPLICATES
    seed: Annotated[int, Meta(ge=0, le=1 << 32)] = 0
    level: Annotated[float, Meta(gt=0, lt=1)] = LEVEL


class MetricFacts(Struct, frozen=True):
    """A metric, as :class:`segcal.metrics.Metric` has its facts."""

    title: str
    unit: str
    better: Literal["lower", "higher"] | None
    pooled: bool


class TaskFacts(Struct, frozen=True):
    """A task that was fitted on.

    Attributes:
        cases: how many there are.
        voxels: of the test cases, per repeat; likewise the numbers of cases in `cal`, `val` and `test`.
        offsets: the spread of the pooled logits' free energy, by case that was tested in some repeat.
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


class RowGroup(Struct, frozen=True):
    """Pipelines, by title, that stand together in the main table."""

    title: str
    rows: tuple[str, ...]


class PipelineFacts(Struct, frozen=True):
    """A pipeline: its parts, how the paper writes it, and what its calibrator promises."""

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
    """All of ``summary.json``; metrics and pipelines are by name and title."""

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
    try:
        plain = parse_json(path.read_text("utf-8"))
        if isinstance(plain, dict) and plain.get("schema") == SCHEMA:
            return msgspec.convert(plain, Summary)
    except (OSError, ValueError) as error:
        raise ArtifactError(
            f"{path} is not readable ({error}), but it must be as segcal wrote it. Run the benchmark again."
        ) from None
    raise ArtifactError(f"{path} is not a summary of schema {SCHEMA}, but one is needed. Run the benchmark again.")
