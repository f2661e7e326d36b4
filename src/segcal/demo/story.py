"""The whole story on the embedded tasks: predict, fit, compare, study, and say in words what was found."""

import json
import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from segcal.atomic import temporary, write_text
from segcal.benchmark.page.writing import PAGE, write_report
from segcal.benchmark.pipelines import Pipeline
from segcal.benchmark.run import Step, check_folder
from segcal.studies.run import Finished as Whole
from segcal.studies.run import run as run_protocol
from segcal.studies.setting import Setting, choose_default
from segcal.studies.study import Outcome as Study
from segcal.studies.study import interval_cell as estimate_cell
from segcal.studies.facts import MATRIX, UNCALIBRATED, Facts, find_facts
from segcal.benchmark.tasks import EmbeddedTask
from segcal.demo.embedded import open_embedded
from segcal.demo.plan import Plan
from segcal.demo.verdict import padding_verdict, shift_verdict, task_verdict
from segcal.kernels.threads import one_thread
from segcal.parent import follow_parent
from segcal.report.table import Cell, Column, Group, Row, Table
from segcal.report.tables import FLIPS, SHOWN

VERDICT = "verdict.json"
# Cases that a process predicts before it reports.
PART = 4


@dataclass(frozen=True)
class Story:
    """What a demonstration found.

    Attributes:
        table: a few rows of the main table.
        verdict: sentences.
        reduced: what was less than everything.
        left_out: studies that had nothing to look at, with the reason.
        written: the files and folders to look at.
        chosen: by task, the calibrator that `segcal fit` would take.
    """

    table: Table
    verdict: tuple[str, ...]
    reduced: tuple[str, ...]
    left_out: dict[str, str]
    written: tuple[Path, ...]
    chosen: dict[str, str]

    def to_plain(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "verdict": list(self.verdict),
            "reduced": list(self.reduced),
            "left_out": self.left_out,
            "chosen": self.chosen,
            "written": [str(path) for path in self.written],
        }


def tell_story(plan: Plan, folder: str | Path, progress: Callable[[Step], None] = lambda step: None) -> Story:
    """Run a demonstration; run again after an interruption, it goes on from there.

    Args:
        plan: what is done.
        folder: where results go.
        progress: told how far it is.
    """
    place = Path(folder)
    check_folder(place)
    with temporary(place) as cache:  # predictions are kept while it runs
        predict_all(plan, cache, progress)
        embedded = partial(open_embedded, cache=cache)
        whole = run_protocol(plan.protocol, place, embedded, open_embedded, progress)
        return _tell(plan, place, whole)


def _tell(plan: Plan, place: Path, whole: Whole) -> Story:
    setting = whole.setting
    chosen = {task.name: choose_default(setting, task).pipeline for task in setting.tasks}
    verdict = find_verdict(setting, chosen, whole.studies)
    table = short_table(setting, chosen)
    table.write(place / "tables", "demo")
    titles = {task: pipeline.calibrator for task, pipeline in chosen.items()}
    names = (PAGE, VERDICT, "tables", "studies", "summary.json", "units", "calibrators")
    written = tuple(place / name for name in names)
    story = Story(table, tuple(verdict), plan.reduced, whole.left_out, written, titles)
    write_text(place / VERDICT, json.dumps(story.to_plain(), indent=1, ensure_ascii=False) + "\n")
    write_report(place)
    return story


def predict_all(plan: Plan, cache: Path, progress: Callable[[Step], None]) -> None:
    """Draw and predict every case once, in as many processes as the plan has; what is there is not done again."""
    tasks = [task for task in plan.protocol.tasks if isinstance(task, EmbeddedTask)]
    parts = [(task, part) for task in tasks for part in batched(open_embedded(task, "mean_logits").cases.ids, PART)]
    total, done = sum(task.cases for task in tasks), 0
    workers = plan.protocol.workers
    if workers == 1:
        for task, part in parts:
            done += predict_part(task, part, cache)
            progress(Step(done, total, f"predicting {task.name}"))
        return
    context = multiprocessing.get_context("spawn")  # a fork of a process with threads may hang
    with ProcessPoolExecutor(workers, context, initializer=follow_parent) as pool:
        names = {pool.submit(predict_part, task, part, cache): task.name for task, part in parts}
        for future in as_completed(names):
            done += future.result()
            progress(Step(done, total, f"predicting {names[future]}"))


def predict_part(task: EmbeddedTask, ids: Sequence[str], cache: Path) -> int:
    """Predict some cases of a task into the cache, in one thread, and return how many."""
    cases = open_embedded(task, "mean_logits", cache).cases
    with one_thread():
        for case_id in ids:
            cases.read(case_id)
    return len(ids)


def batched(ids: Sequence[str], size: int) -> list[Sequence[str]]:
    """Return ids in parts of at most `size`.

    >>> batched("abcde", 2)
    ['ab', 'cd', 'e']
    """
    return [ids[start : start + size] for start in range(0, len(ids), size)]


def find_verdict(setting: Setting, chosen: dict[str, Pipeline], studies: dict[str, Study]) -> list[str]:
    """Return the sentences on all tasks, their corrupted copies, and padding."""
    sentences: list[str] = []
    for task in setting.tasks:
        judged = (setting.results, setting.summary, task.name, chosen[task.name])
        facts = find_facts(*judged)
        sentences += task_verdict(facts)
        shifted: list[Facts] = [find_facts(*judged, target) for target in task.test_on]
        sentences += [shift_verdict(facts, each) for each in shifted]
    if "padding" in studies:
        sentences.append(padding_verdict(studies["padding"]))
    return sentences


def short_table(setting: Setting, chosen: dict[str, Pipeline]) -> Table:
    """Return uncalibrated, default and matrix scaling of each task, with intervals."""
    names = [name for name in SHOWN if name in setting.summary["metrics"]]
    columns = tuple(Column(SHOWN[name].title, "", SHOWN[name].digits, SHOWN[name].scale, None) for name in names)
    groups = []
    for task, default in chosen.items():
        rows = {"uncalibrated": UNCALIBRATED, f"default: {default.calibrator}": default, "matrix scaling: ms": MATRIX}
        found = {title: (pipeline, setting.numbers(task, pipeline.title)) for title, pipeline in rows.items()}
        listed = [Row(title, _cells(names, *pair)) for title, pair in found.items() if pair[1]]
        groups.append(Group(task, tuple(listed)))
    level = 100 * setting.protocol.bootstrap.level
    note = f"Mean [{level:g} % interval over cases; ACE: min, max over repeats]. DSC and Flip in %. — cannot flip."
    return Table("Before and after calibration, mean logits of the ensemble", "", columns, tuple(groups), (note,))


def _cells(names: Sequence[str], pipeline: Pipeline, numbers: dict[str, Any]) -> tuple[Cell, ...]:
    keeps = pipeline.preserves is not None
    return tuple(Cell(None) if keeps and name == FLIPS else estimate_cell(numbers[name]) for name in names)
