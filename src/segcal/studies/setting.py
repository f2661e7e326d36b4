"""What a study is given: a finished benchmark, its summary, and the means to read its cases and calibrators again."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from segcal.benchmark.job import CALIBRATORS
from segcal.benchmark.pipelines import Pipeline
from segcal.benchmark.protocol import Protocol
from segcal.benchmark.results import Results
from segcal.benchmark.study_choice import Options
from segcal.benchmark.summaries import numbers_of
from segcal.benchmark.tasks import Opener, OpenTask, Task, open_task
from segcal.benchmark.units import Unit, divide
from segcal.calibrators.base import Calibrator
from segcal.calibrators.identity import Identity
from segcal.cases.base import Cases, Split
from segcal.fitting.artifact import load


class NothingToStudyError(Exception):
    """A benchmark has nothing that this study is about; the text says what it would need."""


@dataclass(frozen=True)
class Setting:
    """A finished benchmark.

    Attributes:
        protocol: what was run.
        results: its units.
        summary: made from them by :func:`segcal.benchmark.summaries.summarise`.
        embedded: opens embedded tasks.
        embedded_once: the same for cases that are read once, so that nothing of them need be kept; `embedded` if None.
        options: how much is done.
        progress: told what is done next.
    """

    protocol: Protocol
    results: Results
    summary: dict[str, Any] = field(repr=False)
    embedded: Opener | None = None
    embedded_once: Opener | None = None
    options: Options = field(default_factory=Options)
    progress: Callable[[str], None] = lambda text: None

    @property
    def tasks(self) -> list[Task]:
        """Return the tasks that calibrators were fitted on."""
        return [task for task in self.protocol.tasks if not task.test_only]

    def open(self, task: Task, pooling: str, members: int | None = None) -> OpenTask:
        """Open a task with a pooling, and with its first `members` members only if that is given."""
        if members is None:
            return open_task(task, pooling, self.protocol.root, self.embedded)
        kept = members if isinstance(task.members, int) else task.members[:members]
        fewer = replace(task, members=kept)  # type: ignore[arg-type]
        return open_task(fewer, pooling, self.protocol.root, self.embedded_once or self.embedded)

    def split(self, task: Task, pooling: str, repeat: int = 0) -> Split:
        """Return the cases of a task as a repeat divided them."""
        cases = self.open(task, pooling).cases
        return divide(cases, self.protocol.division(task), task.name, self.protocol.seed, repeat)

    def some(self, cases: Cases) -> Cases:
        """Return the first cases, as many as the options allow."""
        return cases if self.options.cases is None else cases.subset(cases.ids[: self.options.cases])

    def calibrator(self, task: Task, pipeline: Pipeline, repeat: int = 0) -> Calibrator:
        """Return a calibrator as the benchmark fitted it."""
        if pipeline.calibrator == "identity":
            return Identity(self.open(task, pipeline.pooling).cases.num_classes)
        stem = Unit(task.name, repeat, pipeline).path.with_suffix("").name
        place = self.results.folder / CALIBRATORS / task.name / f"repeat_{repeat}" / stem
        return load(place).calibrator

    def pipelines(self, task: str, pooling: str | None = None) -> list[Pipeline]:
        """Return the pipelines that were fitted on a task."""
        found = dict.fromkeys(each.unit.pipeline for each in self.results.units if each.unit.task == task)
        return [each for each in found if pooling in (None, each.pooling)]

    def numbers(self, task: str, pipeline: str, test_on: str = "") -> dict[str, Any]:
        """Return the summarised metrics of a pipeline by its title; empty if it is not there."""
        return numbers_of(self.summary, task, pipeline, test_on)
