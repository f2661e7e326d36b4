"""Calibrators that were fitted on clean data, on corrupted copies of the test cases (Tables 6 and 7, Fig. 7).

A corrupted copy is a task of `test_on` that has the same cases, or some of them. The numbers of Table 7 are those of
the benchmark; this study sets them beside the clean ones, case by case: how much worse each pipeline becomes, with
paired intervals.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from segcal.benchmark.results import UnitResult
from segcal.benchmark.tasks import Task
from segcal.metrics import METRICS
from segcal.report.document import TaskSection
from segcal.report.figures import Drawn, new_figure, show_picture, styled
from segcal.report.pictures import Encoded, encode_values
from segcal.report.table import Cell, Column, Group, Row, Table
from segcal.studies.corruptions import BLUR_TAPS, CORRUPTIONS, SETTINGS, STRENGTHS, corrupt
from segcal.studies.setting import NothingToStudyError, Setting, paired_differences
from segcal.studies.study import Outcome, Study, interval_cell, task_groups
from segcal.summary import Bootstrap, Difference, Estimate

SHOWN = {"nll": ("NLL", 3, 1.0), "ece": ("ECE", 3, 1.0)}
# Of each corruption, its name in Table 6 and above a picture.
TITLES = {
    "noise": ("Gaussian noise (sigma)", "Gaussian noise"),
    "blur": ("Gaussian blur (taps, sigma)", "Gaussian blur"),
    "brightness": ("Brightness (factor)", "brightness"),
    "jpeg": ("JPEG compression (quality)", "JPEG compression"),
    "fog": ("Fog (alpha)", "fog"),
}


class ShiftedNumbers(Struct, omit_defaults=True):
    """The numbers of a pipeline in one place, and how they changed against the clean cases (not for these)."""

    metrics: dict[str, Estimate]
    change: dict[str, Difference] | None = None


class CorruptedPicture(Struct):
    """The image of one case, clean and in every strong corruption."""

    case: str
    images: dict[str, Encoded]


class ShiftedTask(Struct):
    """By pipeline and place ("" is clean) the numbers, and an example if there is a picture."""

    pipelines: dict[str, dict[str, ShiftedNumbers]]
    example: CorruptedPicture | None


class CovariateShiftData(Struct):
    """The data of the study, by task, and the strengths of the corruptions."""

    tasks: dict[str, ShiftedTask]
    settings: dict[str, dict[str, float]]


def run_covariate_shift(setting: Setting) -> Outcome[CovariateShiftData]:
    """Compare clean and corrupted test cases of all tasks that have corrupted copies."""
    tasks: dict[str, ShiftedTask] = {}
    targets: dict[str, None] = {}
    for task in setting.tasks:
        copies = [target for target in task.test_on if _same_cases(setting, task.name, target)]
        if copies:
            tasks[task.name] = ShiftedTask(_compare(setting, task.name, copies), _example_corruptions(setting, task))
            targets |= dict.fromkeys(copies)
    if not tasks:
        raise NothingToStudyError("no task has a corrupted copy of its cases in test_on")
    columns = tuple(
        Column(f"Δ{title}" if place else title, place or "clean", digits, scale, METRICS[metric].better)
        for place in ("", *targets)
        for metric, (title, digits, scale) in SHOWN.items()
    )
    table = Table(
        "Fitted on clean cases, tested on corrupted copies",
        "Pipeline",
        columns,
        task_groups({name: one.pipelines for name, one in tasks.items()}, partial(_cells, list(targets))),
        ("Δ: change against the clean cases, paired, with its interval. The values themselves: tables shift_*.",),
        apart=True,
    )
    tables = {"table6_corruptions": settings_table(), "covariate_shift": table}
    return Outcome(CovariateShiftData(tasks, SETTINGS), tables)


def settings_table() -> Table:
    """Return Table 6: the corruptions at their two strengths."""
    rows = []
    for kind, strengths in SETTINGS.items():
        taps = [f"{BLUR_TAPS[strengths[each]]}, " if kind == "blur" else "" for each in STRENGTHS]
        cells = [Cell(f"{own}{strengths[each]:g}") for own, each in zip(taps, STRENGTHS, strict=True)]
        rows.append(Row(TITLES[kind][0], tuple(cells)))
    note = "A picture gets one of them, chosen by a digest of its name; labels stay."
    columns = tuple(Column(strength) for strength in STRENGTHS)
    return Table("Photometric corruptions", "Corruption", columns, (Group("", tuple(rows)),), (note,))


def compare_shift(
    clean: Sequence[UnitResult], shifted: Sequence[UnitResult], bootstrap: Bootstrap
) -> dict[str, Difference]:
    """Return the paired change of each metric from the clean to the shifted cases of a pipeline.

    A copy may have some of the cases only; the change is that of those.
    """
    kept = [{row.case for row in unit.rows} for unit in shifted]
    paired = [
        replace(unit, rows=tuple(row for row in unit.rows if row.case in ids))
        for unit, ids in zip(clean, kept, strict=True)
    ]
    return paired_differences(paired, shifted, bootstrap)


def _example_corruptions(setting: Setting, task: Task) -> CorruptedPicture | None:
    """Return the image of one test case, clean and in every strong corruption; None without a picture."""
    cases = setting.split(task, "mean_logits").test
    case = cases.read(cases.ids[0])
    if case.image is None or case.image.ndim != 3 or len(case.image) not in (1, 3):
        return None
    picture = case.image.numpy()
    if picture.min() < 0 or picture.max() > 1:
        return None
    maps = {"clean": picture} | {kind: corrupt(picture, case.id, "strong", kind=kind) for kind in CORRUPTIONS}
    images = {kind: encode_values(image if len(image) == 3 else image[0]) for kind, image in maps.items()}
    return CorruptedPicture(case.id, images)


def _same_cases(setting: Setting, task: str, target: str) -> bool:
    """Return whether the target was tested on cases of the task's own tests: a copy, and not another place."""
    own, there = (
        {
            each.unit.repeat: set(each.header.test)
            for each in setting.results.units
            if (each.unit.task, each.unit.test_on) == (task, place)
        }
        for place in ("", target)
    )
    return bool(there) and all(there[repeat] <= own.get(repeat, set()) for repeat in there)


def _compare(setting: Setting, task: str, copies: Sequence[str]) -> dict[str, dict[str, ShiftedNumbers]]:
    found = {}
    for title in (each.title for each in setting.pipelines(task)):
        places = {"": ShiftedNumbers(setting.summary.numbers(task, title))}
        clean = setting.results.repeats(task, title)
        for target in copies:
            shifted = setting.results.repeats(task, title, target)
            change = compare_shift(clean, shifted, setting.summary.bootstrap)
            places[target] = ShiftedNumbers(setting.summary.numbers(task, title, target), change)
        found[title] = places
    return found


def _cells(targets: Sequence[str], places: Mapping[str, ShiftedNumbers]) -> Iterator[Cell]:
    clean = places[""].metrics
    yield from (Cell(clean[metric].value if metric in clean else None) for metric in SHOWN)
    for target in targets:
        change = (places[target].change if target in places else None) or {}
        yield from (interval_cell(change.get(metric)) for metric in SHOWN)


@styled()
def corruption_figure(images: Mapping[str, Encoded]) -> Any:
    """Return pictures by kind ("clean" and the corruptions) in two rows."""
    columns = (len(images) + 1) // 2
    figure, axes = new_figure(2, columns, 3.1 * columns, 5.2)
    for axis in axes.flat:
        axis.set_axis_off()
    for axis, (kind, encoded) in zip(axes.flat, images.items(), strict=False):
        show_picture(axis, encoded, (1, 1))
        axis.set_title(TITLES[kind][1] if kind in TITLES else kind)
    return figure


def _figures(data: CovariateShiftData, section: TaskSection) -> Iterator[Drawn]:
    task = section.task
    example = data.tasks[task].example if task in data.tasks else None
    if example:
        text = f"Case {example.case}, as the networks saw it in the tests under other conditions."
        draw = partial(corruption_figure, example.images)
        yield Drawn(f"corruptions_{task}", task, "The same picture under strong corruptions", text, draw)


STUDY = Study(
    "Tables 6 and 7: corrupted copies, paired", "a corrupted copy in `test_on`", "reads one case", True,
    run_covariate_shift, CovariateShiftData, _figures,
)  # fmt: skip
