"""The whole story on the embedded tasks: predict, fit, compare, study, and say in words what was found.

A plan is the protocol of its benchmark: small enough for minutes, or all of it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from segcal.atomic import temporary
from segcal.benchmark.protocol import Pipeline, Protocol, StudyOptions, paper_pipelines
from segcal.benchmark.run import Step, check_folder
from segcal.benchmark.tasks import Division, EmbeddedTask, Task
from segcal.cases.parallel import map_ids
from segcal.demo.embedded import open_embedded
from segcal.documents import write_json
from segcal.evaluation.result import COMPARED
from segcal.fitting import FitConfig
from segcal.kernels.loops import one_thread
from segcal.report.paper_tables import BINS, FLIPS, SHOWN
from segcal.report.table import Cell, Group, Row, Table
from segcal.report.verdict import Facts, MeanCalibration, temperature_words
from segcal.studies import STUDIES
from segcal.studies.document import MATRIX, UNCALIBRATED, find_facts
from segcal.studies.padding import PaddingData
from segcal.studies.page import PAGE, write_page_of
from segcal.studies.run import Finished, run
from segcal.studies.study import Setting, choose_default, interval_cell, value_cell

VERDICT = "verdict.json"
SCALED, CONIC = Pipeline("mean_logits", "ts"), Pipeline("mean_logits", "conic")
QUICK_CALIBRATORS = ("ts", "ms", "dc", "cdc", "cms_ap", "cms_op", "conic")
QUICK_STUDIES = (
    "offsets", "flips", "calibration_size", "binning", "domain_shift", "covariate_shift", "reliability", "padding",
    "worst_cases",
)  # fmt: skip
# Calibration, validation and test cases; the volumes of tumour take longest to predict. Of fewer than ten validation
# cases the default is never more than a temperature.
QUICK_SPLITS = {"roads": Division(20, 15, 20), "tumour": Division(15, 12, 15), "streets": Division(20, 15, 20)}
FULL_SPLIT = Division(50, 25, 45)
# In the order in which they are said.
SHORT_EFFECTS = {"better": "improves", "worse": "worsens", "same": "does not measurably change"}


@dataclass(frozen=True)
class Plan:
    """A demonstration: the protocol of its benchmark, and one sentence for each setting that is reduced."""

    protocol: Protocol
    reduced: tuple[str, ...]


def quick_plan(workers: int = 1) -> Plan:
    """Return a demonstration that two cores finish in about two minutes."""
    plain = [Pipeline(pooling, "identity") for pooling in ("single", "mean_probs")]
    protocol = Protocol(
        tasks=_tasks(QUICK_SPLITS, ("streets",), ("strong",)),
        pipelines=(*plain, UNCALIBRATED, *(Pipeline("mean_logits", name) for name in QUICK_CALIBRATORS)),
        repeats=1,
        fit=FitConfig(voxels=3000, outliers=False),
        studies=QUICK_STUDIES,
        study_options=StudyOptions(
            cases=3, sizes=(2,), size_tasks=("roads",), padding_calibrators=("identity", "ts", "ms", "conic")
        ),
        workers=workers,
    )
    reduced = (
        "one split of the cases into calibration, validation and test instead of three",
        "15 to 20 calibration, 12 to 15 validation and 15 to 20 test cases per task instead of 50, 25 and 45",
        "3,000 voxels per case in the fits instead of 20,000",
        f"calibrators on mean logits only, and of them {', '.join(QUICK_CALIBRATORS)}",
        "corrupted images of streets at one strength instead of roads and streets at two",
        "offsets and flips in detail on 3 cases per task; calibration-set size on roads with 2 sizes; padding with 4 "
        "calibrators",
    )
    missing = ", ".join(name for name in STUDIES if name not in QUICK_STUDIES)
    return Plan(protocol, (*reduced, f"without the studies {missing}") if missing else reduced)


def full_plan(workers: int = 1) -> Plan:
    """Return the whole demonstration: the paper's pipelines, three repeats, all studies."""
    tasks = _tasks(dict.fromkeys(QUICK_SPLITS, FULL_SPLIT), ("roads", "streets"), ("mild", "strong"))
    protocol = Protocol(
        tasks=tasks, pipelines=paper_pipelines(), paper=True, repeats=3, studies=tuple(STUDIES), workers=workers
    )
    return Plan(protocol, ())


def _tasks(
    splits: Mapping[str, Division], corrupted: Sequence[str], strengths: Sequence[str]
) -> tuple[EmbeddedTask, ...]:
    """Return the tasks, and after them the corrupted copies of those whose images are images."""
    counts = {name: split.cal + split.val + (split.test or 0) for name, split in splits.items()}
    copies = {name: tuple(f"{name}_{strength}" for strength in strengths) for name in corrupted}
    tasks = [
        EmbeddedTask(name, name, cases=counts[name], split=split, test_on=copies.get(name, ()))
        for name, split in splits.items()
    ]
    for name, own in copies.items():
        for copy, strength in zip(own, strengths, strict=True):
            tasks.append(EmbeddedTask(copy, name, cases=counts[name], corruption=strength, test_only=True))
    return tuple(tasks)


@dataclass(frozen=True)
class Story:
    """The findings of a demonstration.

    Attributes:
        table: a few rows of the main table.
        reduced: what was less than everything.
        left_out: studies that had nothing to look at, with the reason.
        chosen: by task, the calibrator that `segcal fit` would take.
    """

    table: Table
    verdict: tuple[str, ...]
    reduced: tuple[str, ...]
    left_out: dict[str, str]
    written: tuple[Path, ...]
    chosen: dict[str, str]

    def to_plain(self) -> dict[str, object]:
        """Return everything but the table as plain data."""
        kept = ("verdict", "reduced", "left_out", "chosen")
        return {name: getattr(self, name) for name in kept} | {"written": [str(path) for path in self.written]}


def tell_story(plan: Plan, folder: str | Path, progress: Callable[[Step], None] = lambda step: None) -> Story:
    """Run a demonstration and report its steps; run again after an interruption, it goes on from there."""
    results = Path(folder)
    check_folder(results)
    with temporary(results) as cache:  # predictions are kept while it runs
        predict_all(plan, cache, progress)
        protocol = replace(plan.protocol, embedded=partial(open_embedded, cache=cache))
        return _tell(plan, results, run(protocol, results, progress))


def _tell(plan: Plan, folder: Path, finished: Finished) -> Story:
    setting = finished.setting
    choices = {task.name: choose_default(setting, task) for task in setting.tasks}
    chosen = {task: pipeline for task, (pipeline, _) in choices.items()}
    verdict = [sentence for task in setting.tasks for sentence in _task_verdict(setting, task, *choices[task.name])]
    if isinstance(padding := finished.studies.get("padding"), PaddingData):
        verdict.append(padding_sentence(padding))
    _short_table(setting, chosen).write(folder / "tables", "demo")
    titles = {task: pipeline.calibrator for task, pipeline in chosen.items()}
    names = (PAGE, VERDICT, "tables", "studies", "summary.json", "units", "calibrators")
    written = tuple(folder / name for name in names)
    shown = _short_table(setting, chosen, intervals=False)
    story = Story(shown, tuple(verdict), plan.reduced, finished.left_out, written, titles)
    write_json(folder / VERDICT, story.to_plain())
    write_page_of(finished, plan.reduced)
    return story


def predict_all(plan: Plan, cache: Path, progress: Callable[[Step], None]) -> None:
    """Draw and predict every case once, in as many processes as the plan has; what is there is not done again."""
    tasks = {task.name: task for task in plan.protocol.tasks if isinstance(task, EmbeddedTask)}
    keys = [f"{name}:{each}" for name, task in tasks.items() for each in open_embedded(task, "mean_logits").cases.ids]
    predicted = map_ids(keys, partial(_predict, tasks, cache), plan.protocol.workers)
    for done, (key, _) in enumerate(predicted, start=1):
        progress(Step(done, len(keys), f"predicting {key.partition(':')[0]}"))


def _predict(tasks: Mapping[str, EmbeddedTask], cache: Path, key: str) -> None:
    name, _, case_id = key.partition(":")
    with one_thread():
        open_embedded(tasks[name], "mean_logits", cache=cache).cases.read(case_id)


def _task_verdict(setting: Setting, task: Task, chosen: Pipeline, validation: Mapping[str, float]) -> list[str]:
    """Return the sentences on a task and its corrupted copies; `validation` has the NLL that the choice compared."""
    judged = (setting.results, setting.summary, task.name, chosen)
    facts = find_facts(*judged)
    temperature = setting.calibrator(task, SCALED).temperature if SCALED.title in validation else None
    wrong, *others = short_verdict(facts)
    found = default_sentence(task.name, chosen, validation, len(setting.split(task, chosen.pooling).val), temperature)
    return [wrong, found, *others, *(shift_sentence(facts, find_facts(*judged, target)) for target in task.test_on)]


def default_sentence(
    task: str, chosen: Pipeline, validation: Mapping[str, float], cases: int, temperature: float | None
) -> str:
    """Return what the default is, and what was compared on the validation cases."""
    others = []
    if chosen != SCALED and temperature is not None:
        others.append(f"{validation[SCALED.title]:.4f} with {temperature_words(temperature)}")
    if chosen != UNCALIBRATED:
        others.append(f"{validation[UNCALIBRATED.title]:.4f} uncalibrated")
    beside = f", beside {' and '.join(others)}" if others else ""
    name = {SCALED: temperature_words(temperature or 1.0), UNCALIBRATED: "no calibration"}.get(
        chosen, chosen.calibrator
    )
    nll = f"NLL {validation[chosen.title]:.4f}{beside}"
    return f"{task}: the default is {name}, chosen on {cases} validation cases: {nll}."


def short_verdict(facts: Facts) -> list[str]:
    """Return the verdict on a task for a terminal."""
    text = f"before calibration the ensemble {_judged_shortly(facts.everywhere)}"
    if facts.boundary is not None:
        text += f"; less than 3 voxels from a boundary it {_judged_shortly(facts.boundary)}"
    flips = facts.flips
    mask = f"changed in {flips.total:,}" if flips.total else "did not change: 0"
    sentences = [f"{text}.", *_changes(facts), f"the mask {mask} of {flips.voxels:,} voxels{_matrix(facts)}."]
    return [f"{facts.task}: {sentence}" for sentence in sentences]


def shift_sentence(clean: Facts, shifted: Facts) -> str:
    """Return the ECE of the same calibrator on corrupted copies of the cases."""
    name = clean.calibrator
    values = [facts.change["ece"] for facts in (clean, shifted)]
    parts = [f"{_short_number(one.before)} without and {_short_number(one.after)} with {name}" for one in values]
    effects = {metric: SHORT_EFFECTS[shifted.change[metric].effect()] for metric in ("ece", "nll")}
    return (
        f"{shifted.task}: ECE {parts[1]}, fitted on clean cases (clean: {parts[0]}). Under this shift "
        f"{name} {effects['ece']} ECE and {effects['nll']} NLL."
    )


def _short_number(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.4f}"


def _judged_shortly(calibration: MeanCalibration) -> str:
    pair = f"mean confidence {100 * calibration.confidence:.1f} %, accuracy {100 * calibration.accuracy:.1f} %"
    return f"was {calibration.judged or 'calibrated on average'} ({pair})"


def _changes(facts: Facts) -> list[str]:
    """Return one sentence about what the default changes on the test cases; the table has the numbers themselves."""
    if facts.calibrator == "identity":
        return []
    said: dict[str, list[str]] = {}
    cases = 0
    for metric, change in facts.change.items():
        gap, cases = change.difference, max(cases, change.difference.cases)
        if metric != "dice":
            interval = "undefined" if gap.low is None else gap.text("+.4f", "undefined")
            said.setdefault(change.effect(), []).append(f"{COMPARED[metric]} ({interval})")
    parts = "; ".join(f"{words} {', '.join(said[effect])}" for effect, words in SHORT_EFFECTS.items() if effect in said)
    return [f"on {cases} test cases {facts.calibrator} {parts}."]


def _matrix(facts: Facts) -> str:
    """Return what matrix scaling does to the mask, as the end of a sentence; nothing where it was not fitted."""
    flips = facts.matrix_flips
    if flips is None:
        return ""
    if flips.total == 0:
        return ". Matrix scaling changes no label either"
    harmful, beneficial, neutral = (100 * count / flips.total for count in flips.flips)
    dice = facts.matrix_change["dice"]
    gap = dice.difference
    points = "undefined" if gap.value is None else f"{100 * gap.value:+.2f} points"
    low, high = ("?" if end is None else f"{100 * end:+.2f}" for end in (gap.low, gap.high))
    return (
        f". Matrix scaling changes {flips.total:,} labels ({100 * flips.total / flips.voxels:.2f} %): "
        f"{harmful:.0f} % right to wrong, {beneficial:.0f} % wrong to right, {neutral:.0f} % wrong to wrong. It "
        f"{SHORT_EFFECTS[dice.effect('higher')]} Dice ({points} [{low}, {high}])"
    )


def padding_sentence(data: PaddingData) -> str:
    """Return the effect of padding that is counted."""
    plain, check = data.calibrators["identity"], data.check
    before, after = (_short_number(plain[way]["ece"].value) for way in ("masked", "unmasked"))
    text = (
        f"padding: if the filled area outside of the crop ({100 * check.mean_share:.0f} % of the voxels) is counted, "
        f"the uncalibrated ECE goes from {before} to {after}"
    )
    if {"masked", "unmasked"} <= set(data.temperature):
        low, high = data.temperature["unmasked"], data.temperature["masked"]
        text += f" and the temperature from {high:.2f} to {low:.2f}"
    return f"{text}; segcal check reports it in {check.caught} of {check.cases} cases."


def _short_table(setting: Setting, chosen: Mapping[str, Pipeline], intervals: bool = True) -> Table:
    """Return uncalibrated, temperature, conic and matrix scaling of each task, and what is the default there."""
    names = [name for name in SHOWN if name in setting.summary.metrics]
    groups = []
    for task, default in chosen.items():
        rows = []
        for pipeline in dict.fromkeys((UNCALIBRATED, SCALED, CONIC, default, MATRIX)):
            if numbers := setting.summary.numbers(task, pipeline.title):
                title = pipeline.make(2).title
                keeps, cell = pipeline.preserves is not None, interval_cell if intervals else value_cell
                cells = (Cell(None) if keeps and name == FLIPS else cell(numbers[name]) for name in names)
                rows.append(Row(f"{title} (default)" if pipeline == default else title, tuple(cells)))
        groups.append(Group(task, tuple(rows)))
    level = 100 * setting.protocol.bootstrap.level
    means = f"Mean [{level:g} % interval over cases; ACE: min, max over repeats]. " if intervals else ""
    note = f"{means}DSC (Dice) and Flip (changed labels) in %. — cannot change a label."
    columns = tuple(SHOWN[name] for name in names)
    title = "Test cases before and after calibration (mean logits of the ensemble)"
    return Table(title, "", columns, tuple(groups), (note, *BINS))
