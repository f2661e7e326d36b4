"""The setting of a study: a finished benchmark, and the means to read its cases and calibrators again."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from segcal.benchmark.pipelines import Pipeline
from segcal.benchmark.protocol import Protocol
from segcal.benchmark.results import Results, Unit, UnitResult
from segcal.benchmark.tasks import Task
from segcal.calibrators.base import Calibrator
from segcal.calibrators.temperature import Identity
from segcal.cases.base import Cases, Split
from segcal.evaluation.case_counter import Counter, Stage
from segcal.fitting.artifact import load
from segcal.fitting.choice import Candidate, Tried, candidates, decide
from segcal.fitting.division import group_names
from segcal.fitting.scores import measure
from segcal.fitting.voxels import StreamedVoxels
from segcal.metrics import METRICS, find_metrics
from segcal.report.verdict import COMPARED
from segcal.summary import Bootstrap, Difference, Summary, difference


class NothingToStudyError(Exception):
    """A benchmark has nothing that this study is about; the text says what it would need."""


@dataclass(frozen=True)
class Setting:
    """A finished benchmark: its protocol, its units, the summary of these; `progress` is told what is done next."""

    protocol: Protocol
    results: Results
    summary: Summary = field(repr=False)
    progress: Callable[[str], None] = lambda text: None

    @property
    def tasks(self) -> list[Task]:
        """The tasks that calibrators were fitted on."""
        return [task for task in self.protocol.tasks if not task.test_only]

    def by_members(self, task: Task) -> Iterator[tuple[int, Cases]]:
        """Yield 1, 2, ... and some cases with the mean logits of so many members."""
        for size in range(1, member_count(task) + 1):
            self.progress(f"{task.name} with {size} of {member_count(task)} members")
            yield size, self.some(self.protocol.open(task, "mean_logits", size).cases)

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


def member_count(task: Task) -> int:
    """Return how many members a task has."""
    return task.members if isinstance(task.members, int) else len(task.members)


def count_stages(cases: Cases, calibrators: Mapping[str, Calibrator], metrics: tuple[str, ...]) -> dict[str, Stage]:
    """Return the numbers of the cases after each calibrator, every case read once."""
    chosen = find_metrics(metrics)
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


class Default(NamedTuple):
    """The chosen pipeline, why, and the mean validation NLL of all that were compared, by their title."""

    pipeline: Pipeline
    reason: str
    validation_nll: dict[str, float]


def choose_default(setting: Setting, task: Task, pooling: str | None = "mean_logits") -> Default:
    """Choose as `segcal fit` would, among the fitted pipelines with one pooling, or with any.

    The rule is that of :mod:`segcal.fitting.choice`, on the validation cases of the first repeat: a pipeline that is
    clearly better than temperature scaling, or temperature scaling, or nothing. Nothing is fitted again.
    """
    tried: dict[Pipeline, Tried] = {}
    for name in dict.fromkeys(each.pooling for each in setting.pipelines(task.name, pooling)):
        validation = setting.split(task, name).val
        pipelines = setting.pipelines(task.name, name)
        contexts = {context for each in pipelines for context in each.make(2).wants}
        voxels = StreamedVoxels(validation, lambda: None, contexts=contexts)
        for each in pipelines:
            if each.calibrator in candidates(validation.num_classes):
                calibrator = setting.calibrator(task, each)
                candidate = Candidate(each.calibrator, each.pooling, calibrator.num_identifiable())
                tried[each] = Tried(candidate, measure(calibrator, voxels, torch.device("cpu")))
    groups = dict(zip(validation.ids, group_names(validation, validation.ids), strict=True))
    decision = decide(list(tried.values()), groups, folds=1)
    key = (decision.chosen.name, decision.chosen.pooling)
    chosen = next(each for each in tried if (each.calibrator, each.pooling) == key)
    return Default(chosen, decision.reason, {each.title: row.nll for each, row in tried.items()})
