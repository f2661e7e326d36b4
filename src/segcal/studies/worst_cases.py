"""A few cases to look at, the worst first: where the confidence misleads most, and where calibration helped least.

For each task the pipeline is the one that `segcal fit` would take, chosen on validation cases
(:func:`segcal.studies.study.choose_default`). Of the test cases of the first repeat the critical ones are kept: the
highest NLL after calibration, the smallest and the largest gain. How many there are, and how large their images, is
bounded, however many cases were tested.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from msgspec import Struct

from segcal.benchmark.protocol import Pipeline
from segcal.benchmark.tasks import Task
from segcal.report.document import TaskSection
from segcal.report.figures import (
    CLASS_COLOURS,
    CONFIDENCE_MAP,
    Drawn,
    new_figure,
    shorten,
    show_classes,
    show_image,
    styled,
)
from segcal.report.images import SeenCase, SliceMaps, decode_map, see_cases
from segcal.report.table import Cell, Column, Table
from segcal.studies.study import Setting, Study, choose_default, drawn_of, per_task

# Of local temperatures, those of the first that was fitted are shown.
LOCAL = ("lts_ti", "lts")
RULE = (
    "The calibrator is the one that segcal fit would take, chosen on the validation cases of the first repeat. Cases "
    "are from its test cases: three with the highest loss (NLL) after calibration, two that gained least, one that "
    "gained most."
)
# Of a figure: so many cases, and so many classes in its legend.
MOST_CASES = 4
MOST_NAMES = 20
# Of a case, its name and one slice.
Shown = tuple[str, SliceMaps]


class ChosenPipeline(Struct, omit_defaults=True):
    """The pipeline of a task, as a protocol names it."""

    title: str
    pooling: str
    calibrator: str
    options: dict[str, object] = {}


class SeenTask(Struct):
    """The cases of a task, `of` so many, and by title what was chosen among, and whose temperature is shown."""

    chosen: ChosenPipeline
    validation_nll: dict[str, float]
    cases: list[SeenCase]
    of: int
    temperature: str | None = None


class WorstCasesData(Struct):
    """The rule by which cases were chosen, and by task the cases."""

    rule: str
    tasks: dict[str, SeenTask]


def look_at(setting: Setting, task: Task) -> SeenTask:
    """Return the chosen pipeline of a task, and its cases with their maps."""
    chosen, validation = choose_pipeline(setting, task)
    fitted = {each.calibrator: each for each in setting.pipelines(task.name, chosen.pooling)}
    local = next((fitted[name] for name in LOCAL if name in fitted), None)
    numbers = case_numbers(setting, task.name, chosen)
    seen = see_cases(
        setting.split(task, chosen.pooling).test,
        numbers,
        setting.calibrator(task, chosen),
        setting.protocol.open(task, chosen.pooling).background,
        None if local is None else setting.calibrator(task, local),
    )
    named = ChosenPipeline(chosen.title, chosen.pooling, chosen.calibrator, chosen.options)
    return SeenTask(named, validation, seen, len(numbers), None if local is None else local.title)


def choose_pipeline(setting: Setting, task: Task) -> tuple[Pipeline, dict[str, float]]:
    """Return the pipeline that would be taken by default, and the validation NLL of all that were compared.

    With mean logits if they were pooled so, else with the first pooling of the protocol. Without validation cases it is
    the first calibrator that keeps the mask and does not see the offset.
    """
    found = setting.pipelines(task.name)
    own = [each for each in found if each.pooling == "mean_logits"]
    own = own or [each for each in found if each.pooling == found[0].pooling]
    if len(setting.split(task, own[0].pooling).val):
        return choose_default(setting, task, own[0].pooling)
    safe = [each for each in own if each.calibrator != "identity" and each.preserves and each.translation_invariant]
    return (safe or own)[0], {}


def case_numbers(setting: Setting, task: str, chosen: Pipeline) -> dict[str, SeenCase]:
    """Return the numbers of the test cases of the first repeat, before and after."""
    after = setting.results.repeats(task, chosen.title)[0]
    plain = setting.results.repeats(task, Pipeline(chosen.pooling, "identity").title) or [after]
    found = {}
    for old, new in zip(plain[0].rows, after.rows, strict=True):
        nll, ece, dice = ([row.metrics.get(name) for row in (old, new)] for name in ("nll", "ece", "dice"))
        found[new.case] = SeenCase(new.case, [], nll, ece, dice, new.voxels, new.metrics.get("flip_rate"))
    return found


def _tables(data: WorstCasesData) -> dict[str, Table]:
    numbers = [Column(stage, metric) for metric in ("NLL", "ECE") for stage in ("before", "after")]
    rows = {f"{name}: {one.chosen.title}": {each.case: each for each in one.cases} for name, one in data.tasks.items()}

    def cells(one: SeenCase) -> Iterator[Cell]:
        yield from map(Cell, (", ".join(one.why), *one.nll, *one.ece, one.dice[1]))

    title, columns = "Cases to look at, the worst first", (Column("why"), *numbers, Column("Dice"))
    return {"worst_cases": Table.of(title, columns, rows, cells, data.rule, first="Case")}


@styled()
def overlay_figure(cases: Sequence[Shown], classes: Sequence[str], background: bool = True) -> Any:
    """Return inputs above, and the same with the truth over them below, one case per column (Fig. 2)."""
    from matplotlib.patches import Patch

    figure, axes = new_figure(2, len(cases), 2.9 * len(cases), 5.4)
    for (upper, lower), (name, one) in zip(axes.T, cases, strict=True):
        shape = decode_map(one.truth).shape
        for axis in (upper, lower):
            show_image(axis, one.image, shape)
        show_classes(lower, one.truth, background, 0.55)
        upper.set_title(shorten(name, 30))
    first = 1 if background else 0
    patches = [
        Patch(color=CLASS_COLOURS[k % len(CLASS_COLOURS)], label=shorten(text, 20))
        for k, text in enumerate(classes[first:][:MOST_NAMES])
    ]
    figure.legend(handles=patches, loc="outside lower center", ncols=min(len(patches), 6) or 1, fontsize=8)
    return figure


@styled()
def temperature_figure(cases: Sequence[Shown]) -> Any:
    """Return the image and the local temperature of some cases, all temperatures on one logarithmic scale."""
    from matplotlib.colors import LogNorm

    maps = [decode_map(one.temperature or {}) for _, one in cases]
    low, high = min(float(each.min()) for each in maps), max(float(each.max()) for each in maps)
    norm = LogNorm(max(low, 1e-3), max(high, low * 1.001, 1e-3 * 1.001))
    figure, axes = new_figure(2, len(cases), 3 * len(cases) + 0.5, 5.4)
    for (upper, lower), (name, one), values in zip(axes.T, cases, maps, strict=True):
        show_image(upper, one.image, values.shape)
        upper.set_title(shorten(name, 28))
        drawn = lower.imshow(np.maximum(values, 1e-3), cmap=CONFIDENCE_MAP, norm=norm)
        lower.set_axis_off()
    figure.colorbar(drawn, ax=axes[1, :].tolist(), shrink=0.8, label="temperature: above 1 is softened")
    return figure


def _figures(data: WorstCasesData, section: TaskSection) -> Iterator[Drawn]:
    found = data.tasks.get(section.task)
    if not found or not found.cases:
        return
    cases = [(case.case, case.slices[len(case.slices) // 2]) for case in found.cases[:MOST_CASES]]
    title, shown = "Inputs, and the truth laid over them", (cases, section.classes, section.background)
    yield drawn_of(section, "inputs", title, "The cases of the browser.", overlay_figure, *shown, on_page=False)
    if all(one.temperature for _, one in cases):
        text = "Above 1 the confidence of a voxel is lowered, below 1 it is raised; one scale for all cases."
        yield drawn_of(section, "temperature", "Local temperature", text, temperature_figure, cases)


STUDY = Study(
    "a few test cases to look at, the worst first", "", "reads the validation cases and six test cases", True,
    per_task(look_at, partial(WorstCasesData, RULE), "no task was fitted"), WorstCasesData, _tables, _figures,
)  # fmt: skip
