"""A study: facts for its reader, and typed data of a finished benchmark, of which its tables and figures are made.

``studies/NAME.json`` has the data after a header, ``tables/STEM.{md,csv,tex}`` the tables. The setting of a study is a
finished benchmark, with the means to read its cases and calibrators again.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from msgspec import Struct, convert, to_builtins

from segcal.benchmark.protocol import Pipeline, Protocol
from segcal.benchmark.results import Results, Unit, UnitResult
from segcal.benchmark.tasks import Task
from segcal.calibrators.base import Calibrator
from segcal.calibrators.temperature import Identity
from segcal.cases.base import Case, Cases, Split
from segcal.documents import parse_json, write_json
from segcal.evaluation.case_counter import Counter, Stage
from segcal.evaluation.result import COMPARED
from segcal.fitting.artifact import load
from segcal.fitting.choice import Candidate, ChoiceRule, Tried, candidates
from segcal.fitting.division import groups_of
from segcal.fitting.scores import measure
from segcal.fitting.voxels import StreamedVoxels
from segcal.metrics import METRICS, find_metrics, rater_metrics
from segcal.report.document import TaskSection
from segcal.report.figures import Drawn, line_style, new_figure, shorten, styled
from segcal.report.paper_tables import FOLDER as TABLES
from segcal.report.table import Cell, Table
from segcal.summary import Bootstrap, Difference, Interval, Summary, difference

SCHEMA = 1
FOLDER = "studies"
# Of more pipelines than these the first ones are drawn.
MOST_LINES = 8

One = TypeVar("One")
Other = TypeVar("Other")


class NothingToStudyError(Exception):
    """A benchmark has nothing that this study is about; the text says what it would need."""


@dataclass(frozen=True)
class Setting:
    """A finished benchmark: its protocol, its units, and the summary of these."""

    protocol: Protocol
    results: Results
    summary: Summary = field(repr=False)

    @property
    def tasks(self) -> list[Task]:
        """The tasks that calibrators were fitted on."""
        return [task for task in self.protocol.tasks if not task.test_only]

    def by_members(self, task: Task) -> Iterator[tuple[int, Cases]]:
        """Yield 1, 2, ... and some cases with the mean logits of so many members."""
        for size in range(1, member_count(task) + 1):
            yield size, self.some(self.protocol.open(task, "mean_logits", size).cases)

    def some_tested(self, task: Task, pooling: str = "mean_logits") -> Cases:
        """Return the first test cases of the first repeat."""
        return self.some(self.split(task, pooling).test)

    def split(self, task: Task, pooling: str, repeat: int = 0) -> Split:
        """Return the cases of a task as a repeat divided them."""
        return self.protocol.divide(task, self.protocol.open(task, pooling).cases, repeat)

    def some(self, cases: Cases) -> Cases:
        """Return the first cases, as many as the options allow."""
        most = self.protocol.study_options.cases
        return cases if most is None else cases.subset(cases.ids[:most])

    def calibrator(self, task: Task, pipeline: Pipeline, repeat: int = 0) -> Calibrator:
        """Return a calibrator as the benchmark fitted it."""
        if pipeline.calibrator == "identity":
            return Identity(self.protocol.open(task, pipeline.pooling).cases.num_classes)
        unit = Unit(task=task.name, repeat=repeat, pipeline=pipeline)
        return load(self.results.folder / unit.calibrator_path).calibrator

    def pipelines(self, task: str, pooling: str | None = None) -> list[Pipeline]:
        """Return the pipelines that were fitted on a task."""
        found = dict.fromkeys(each.unit.pipeline for each in self.results.units if each.unit.task == task)
        return [each for each in found if pooling in (None, each.pooling)]


def per_task(
    find: Callable[[Setting, Task], One | None], data: Callable[[dict[str, One]], Struct], nothing: str
) -> Callable[[Setting], Struct]:
    """Return the run of a study whose data is made of what it finds in each task; `nothing` says that none has any."""

    def run(setting: Setting) -> Struct:
        found = {task.name: one for task in setting.tasks if (one := find(setting, task)) is not None}
        if not found:
            raise NothingToStudyError(nothing)
        return data(found)

    return run


def both(found: Mapping[str, tuple[One, Other]]) -> tuple[dict[str, One], dict[str, Other]]:
    """Return the two things that were found in each task apart."""
    return {task: one for task, (one, _) in found.items()}, {task: other for task, (_, other) in found.items()}


def member_count(task: Task) -> int:
    """Return how many members a task has."""
    return task.members if isinstance(task.members, int) else len(task.members)


class ChangedCases(Cases):
    """Cases that a function changes when they are read; what it gives is logits."""

    def __init__(self, cases: Cases, change: Callable[[Case], Case]) -> None:
        super().__init__(cases.ids, cases.num_classes, "logits", cases.pooling, cases.class_names, groups=cases.groups)
        self.raters = cases.raters
        self._cases, self._change = cases, change

    def read(self, case_id: str) -> Case:
        """Read one case and change it."""
        return self._change(self._cases.read(case_id))


def count_stages(cases: Cases, calibrators: Mapping[str, Calibrator], metrics: tuple[str, ...]) -> dict[str, Stage]:
    """Return the numbers of the cases after each calibrator, every case read once."""
    chosen = rater_metrics(find_metrics(metrics), cases.raters)
    counter, stages = Counter(chosen), {name: Stage(chosen) for name in calibrators}
    for case in cases:
        for name, counted in counter.count_each(case, calibrators)[1].items():
            stages[name].add(case.id, counted.tables)
    return stages


def paired_differences(
    before: Sequence[UnitResult], after: Sequence[UnitResult], bootstrap: Bootstrap
) -> dict[str, Difference]:
    """Return the paired difference of each metric between units of the same cases."""
    draws = bootstrap.draws([unit.groups for unit in after])
    found = {}
    for name in (each for each in COMPARED if each in after[0].rows[0].metrics):
        first, second = ([unit.column(name) for unit in units] for units in (before, after))
        found[name] = difference(first, second, draws, METRICS[name].better, bootstrap.level)
    return found


def choose_default(setting: Setting, task: Task, pooling: str = "mean_logits") -> tuple[Pipeline, dict[str, float]]:
    """Choose as `segcal fit` would, among the fitted pipelines with one pooling.

    The rule is that of :mod:`segcal.fitting.choice`, on the validation cases of the first repeat. It takes a pipeline
    that is clearly better than temperature scaling, or temperature scaling, or nothing. Nothing is fitted again.
    Returned are the pipeline, and the mean validation NLL of all that were compared, by their title.
    """
    validation, pipelines = setting.split(task, pooling).val, setting.pipelines(task.name, pooling)
    contexts = {context for each in pipelines for context in each.make(2).wants}
    voxels = StreamedVoxels(validation, lambda: None, contexts=contexts)
    tried: dict[Pipeline, Tried] = {}
    for each in pipelines:
        if each.calibrator in candidates(validation.num_classes):
            calibrator = setting.calibrator(task, each)
            candidate = Candidate(each.calibrator, each.pooling, calibrator.num_identifiable())
            tried[each] = Tried(candidate, measure(calibrator, voxels, torch.device("cpu")))
    decision = ChoiceRule(groups_of(validation), folds=1).decide(list(tried.values()))
    chosen = next(each for each in tried if each.calibrator == decision.chosen.name)
    return chosen, {each.title: row.nll for each, row in tried.items()}


class StudyHeader(Struct):
    """The head of a document, before the data of its study."""

    schema: int
    study: str
    digest: str
    tables: list[str]


class Study(NamedTuple):
    """A study.

    Attributes:
        shows: its subject; `needs`: of the benchmark, "" for nothing in particular; `costs`: its time.
        usual: whether it runs if the protocol names no studies.
        run: from a finished benchmark to the data; raises NothingToStudyError.
        data: the type of its data.
        tables: of the data, by the stem of their files.
        figures: of one task, from the data.
    """

    shows: str
    needs: str
    costs: str
    usual: bool
    run: Callable[[Setting], Struct]
    data: type[Struct]
    tables: Callable[[Any], Mapping[str, Table]]
    figures: Callable[[Any, TaskSection], Iterable[Drawn]] = lambda data, section: ()

    def write(self, results: str | Path, name: str, data: Struct, digest: str = "") -> list[Path]:
        """Write the data of the study of this name and its tables into a folder of results; return the paths.

        `digest` is of what decides the numbers. The document comes last: once it is there, so are the tables.
        """
        place = Path(results)
        written = [path for stem, table in self.tables(data).items() for path in table.write(place / TABLES, stem)]
        header = StudyHeader(SCHEMA, name, digest, [path.name for path in written])
        return [write_json(place / FOLDER / f"{name}.json", to_builtins(header) | to_builtins(data)), *written]

    def read(self, results: str | Path, name: str, digest: str) -> Struct | None:
        """Return the data that was written with this digest and all its tables; None if it is to be done anew."""
        place = Path(results)
        try:
            document = parse_json((place / FOLDER / f"{name}.json").read_text("utf-8"))
            header, data = convert(document, StudyHeader), convert(document, self.data)
        except (OSError, ValueError):
            return None
        same = (header.schema, header.study, header.digest) == (SCHEMA, name, digest)
        return data if same and all((place / TABLES / file).is_file() for file in header.tables) else None


def interval_cell(one: Interval | None) -> Cell:
    """Return a number as a cell; an interval of no width (one repeat, or nothing that changed) is not shown.

    >>> interval_cell(Interval(0.5, 0.5, 0.5))
    Cell(value=0.5, low=None, high=None, middle=None)
    """
    if one is None or one.low == one.high:
        return value_cell(one)
    return Cell(one.value, one.low, one.high)


def value_cell(one: Interval | None) -> Cell:
    """Return a number as a cell without its interval."""
    return Cell(None if one is None else one.value)


def drawn_of(
    section: TaskSection, stem: str, title: str, text: str, draw: Callable[..., Any], *data: Any, on_page: bool = True
) -> Drawn:
    """Return a figure of the task of a section; `draw` makes it of the data when it is needed."""
    return Drawn(f"{stem}_{section.task}", section.task, title, text, partial(draw, *data), on_page)


def compared_first(section: TaskSection, pipelines: Mapping[str, One]) -> dict[str, One]:
    """Return the pipelines that are drawn: those first that the page compares, and not too many."""
    titles = dict.fromkeys([*filter(None, (section.baseline, section.chosen)), *pipelines])
    return {title: pipelines[title] for title in [each for each in titles if each in pipelines][:MOST_LINES]}


@styled()
def band_figure(
    panels: Mapping[str, Mapping[str, Mapping[int, Interval]]],
    size: tuple[float, float],
    xlabel: str,
    ylabel: str = "",
    zero: bool = False,
    **limits: Any,
) -> Any:
    """Return axes side by side, on each a line per pipeline with a band of its intervals; `zero` draws a line there."""
    figure, axes = new_figure(1, len(panels), *size)
    for axis, (heading, lines) in zip(axes[0], panels.items(), strict=True):
        if zero:
            axis.axhline(0, color="#8a939c", linewidth=1)
        for number, (title, points) in enumerate(list(lines.items())[:MOST_LINES]):
            style, places = line_style(number), list(points)
            value, low, high = (
                np.array([getattr(each, end) for each in points.values()], float) for end in ("value", "low", "high")
            )
            axis.plot(places, value, label=shorten(title, 30), **style)
            axis.fill_between(places, low, high, color=style["color"], alpha=0.12, linewidth=0)
        axis.set(title=heading, xlabel=xlabel, **limits)
    axes[0, 0].set_ylabel(ylabel)
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8)
    return figure
