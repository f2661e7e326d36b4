"""Calibrators that were fitted at one site, and tested at others: tasks of `test_on`.

*Domain shift* has the layout of the selective-scaling paper's Tables 1 and 2. A row is a dataset and model (here: a
pooling of the ensemble), a column a calibrator. The numbers are ECE, beside the mean intersection over union of the
uncalibrated prediction. In the second table calibrators are fitted on InD and tested on SD, without any fitting there.

*Covariate shift* (Tables 6 and 7, Fig. 7) is of corrupted copies: tasks of `test_on` that have the same cases, or some
of them. The numbers of Table 7 are those of the benchmark. The study sets them beside the clean ones, case by case: how
much worse each pipeline becomes, with paired intervals.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from segcal.benchmark.results import UnitResult
from segcal.benchmark.tasks import Task
from segcal.metrics import METRICS
from segcal.report.document import TaskSection
from segcal.report.figures import Drawn, new_figure, show_image, styled
from segcal.report.images import Encoded, encode_values
from segcal.report.table import Cell, Column, Table
from segcal.studies.corruptions import BLUR_TAPS, CORRUPTIONS, SETTINGS, STRENGTHS, corrupt
from segcal.studies.study import (
    NothingToStudyError,
    Setting,
    Study,
    drawn_of,
    interval_cell,
    paired_differences,
    per_task,
    value_cell,
)
from segcal.summary import Bootstrap, Difference, Estimate

UNCALIBRATED = "identity"
SHOWN = {"nll": "NLL", "ece": "ECE"}
# Of each corruption, its name in Table 6, which is also the title of its image.
TITLES = {
    "noise": ("Gaussian noise (sigma)", "Gaussian noise"),
    "blur": ("Gaussian blur (taps, sigma)", "Gaussian blur"),
    "brightness": ("Brightness (factor)", "brightness"),
    "jpeg": ("JPEG compression (quality)", "JPEG compression"),
    "fog": ("Fog (alpha)", "fog"),
}


class DomainRow(Struct):
    """Mean IoU uncalibrated, and the ECE of each calibrator; SD is "" in the domain of the fit."""

    InD: str
    SD: str
    model: str
    miou: Estimate | None
    ece: dict[str, Estimate]


class DomainShiftData(Struct):
    """The rows of the two tables."""

    in_domain: list[DomainRow]
    domain_shift: list[DomainRow]


def _run_domain_shift(setting: Setting) -> DomainShiftData:
    """Arrange the results in and out of their domain: one row per task, target and pooling."""
    rows: dict[tuple[str, str, str], DomainRow] = {}
    for result in setting.summary.results:
        pipeline = setting.summary.pipelines[result.pipeline]
        key = (result.task, result.test_on, pipeline.pooling)
        if "ece" in result.metrics:
            row = rows.setdefault(key, DomainRow(*key, None, {}))
            row.ece[pipeline.calibrator] = result.metrics["ece"]
            if pipeline.calibrator == UNCALIBRATED:
                row.miou = result.metrics.get("miou")
    if not any(result.test_on for result in setting.summary.results):
        raise NothingToStudyError("no task names another one in test_on")
    return DomainShiftData([row for row in rows.values() if not row.SD], [row for row in rows.values() if row.SD])


def _domain_tables(data: DomainShiftData) -> dict[str, Table]:
    note = "ECE with 50 bins, mean over cases and repeats; mIoU in %, of the uncalibrated prediction."
    tables = {}
    for stem, title, rows in (
        ("selective_table1_in_domain", "ECE in the domain of the fit", data.in_domain),
        ("selective_table2_domain_shift", "ECE under domain shift: fitted on InD, tested on SD", data.domain_shift),
    ):
        names = list(dict.fromkeys(name for row in rows for name in row.ece))
        columns = (Column("mIoU", digits=2, scale=100), *(Column("Uncal" if n == UNCALIBRATED else n) for n in names))
        groups: dict[str, dict[str, list[Estimate | None]]] = {}
        for row in rows:
            numbers = [row.miou, *(row.ece.get(name) for name in names)]
            groups.setdefault(f"{row.InD} to {row.SD}" if row.SD else row.InD, {})[row.model] = numbers
        tables[stem] = Table.of(title, columns, groups, lambda own: map(value_cell, own), note, first="Model")
    return tables


class ShiftedNumbers(Struct, omit_defaults=True):
    """The numbers of a pipeline at one site, and how they changed against the clean cases (not for these)."""

    metrics: dict[str, Estimate]
    change: dict[str, Difference] | None = None


class CorruptedImage(Struct):
    """The image of one case, clean and in every strong corruption."""

    case: str
    images: dict[str, Encoded]


class ShiftedTask(Struct):
    """By pipeline and site ("" is clean) the numbers, and an example if there is an image."""

    pipelines: dict[str, dict[str, ShiftedNumbers]]
    example: CorruptedImage | None


class CovariateShiftData(Struct):
    """By task, the numbers; and the strengths of the corruptions."""

    tasks: dict[str, ShiftedTask]
    settings: dict[str, dict[str, float]]


def _compare_copies(setting: Setting, task: Task) -> ShiftedTask | None:
    """Compare clean and corrupted test cases of a task that has corrupted copies."""
    copies = [target for target in task.test_on if _same_cases(setting, task.name, target)]
    if not copies:
        return None
    places = {each.title: _compare(setting, task.name, each.title, copies) for each in setting.pipelines(task.name)}
    return ShiftedTask(places, _example_corruptions(setting, task))


def _same_cases(setting: Setting, task: str, target: str) -> bool:
    """Return whether the target was tested on cases of the task's own tests: a copy, and not another site."""
    own, there = (
        {
            each.unit.repeat: set(each.header.test)
            for each in setting.results.units
            if (each.unit.task, each.unit.test_on) == (task, place)
        }
        for place in ("", target)
    )
    return bool(there) and all(there[repeat] <= own.get(repeat, set()) for repeat in there)


def _compare(setting: Setting, task: str, title: str, copies: Sequence[str]) -> dict[str, ShiftedNumbers]:
    places = {"": ShiftedNumbers(setting.summary.numbers(task, title))}
    clean = setting.results.repeats(task, title)
    for target in copies:
        shifted = setting.results.repeats(task, title, target)
        if len(shifted) == len(clean):  # else not finished
            change = compare_shift(clean, shifted, setting.summary.bootstrap)
            places[target] = ShiftedNumbers(setting.summary.numbers(task, title, target), change)
    return places


def compare_shift(
    clean: Sequence[UnitResult], shifted: Sequence[UnitResult], bootstrap: Bootstrap
) -> dict[str, Difference]:
    """Return the paired change of each metric from the clean to the shifted cases of a pipeline.

    A copy may have some of the cases only; the change is that of those.
    """
    paired = []
    for unit, other in zip(clean, shifted, strict=True):
        kept = {row.case for row in other.rows}
        paired.append(replace(unit, rows=tuple(row for row in unit.rows if row.case in kept)))
    return paired_differences(paired, shifted, bootstrap)


def _example_corruptions(setting: Setting, task: Task) -> CorruptedImage | None:
    """Return the image of one test case, clean and in every strong corruption; None without an image."""
    cases = setting.split(task, "mean_logits").test
    case = cases.read(cases.ids[0])
    if case.image is None or case.image.ndim != 3 or len(case.image) not in (1, 3):
        return None
    image = case.image.numpy()
    if image.min() < 0 or image.max() > 1:
        return None
    maps = {"clean": image} | {kind: corrupt(image, case.id, "strong", kind=kind) for kind in CORRUPTIONS}
    images = {kind: encode_values(image if len(image) == 3 else image[0]) for kind, image in maps.items()}
    return CorruptedImage(case.id, images)


def _covariate_tables(data: CovariateShiftData) -> dict[str, Table]:
    """Return Table 6, the corruptions at their two strengths, and the comparison."""

    def shown(kind: str, value: float) -> str:
        return f"{BLUR_TAPS[value]}, {value:g}" if kind == "blur" else f"{value:g}"

    settings = {TITLES[kind][0]: [shown(kind, own[each]) for each in STRENGTHS] for kind, own in data.settings.items()}
    note = "An image gets one of them, chosen by a digest of its name; labels stay."
    strengths, title = map(Column, STRENGTHS), "Photometric corruptions"
    table6 = Table.of(title, strengths, {"": settings}, lambda own: map(Cell, own), note, first="Corruption")
    tasks = {name: one.pipelines for name, one in data.tasks.items()}
    targets = list(dict.fromkeys(place for own in tasks.values() for by in own.values() for place in by if place))
    columns = (
        Column(f"Δ{title}" if place else title, place or "clean", better=METRICS[metric].better)
        for place in ("", *targets)
        for metric, title in SHOWN.items()
    )

    def cells(places: Mapping[str, ShiftedNumbers]) -> Iterator[Cell]:
        yield from (value_cell(places[""].metrics.get(metric)) for metric in SHOWN)
        for target in targets:
            change = (places[target].change if target in places else None) or {}
            yield from (interval_cell(change.get(metric)) for metric in SHOWN)

    title = "Fitted on clean cases, tested on corrupted copies"
    note = "Δ: change against the clean cases, paired, with its interval. The values themselves: tables shift_*."
    return {
        "table6_corruptions": table6,
        "covariate_shift": Table.of(title, columns, tasks, cells, note, apart=True),
    }


@styled()
def corruption_figure(images: Mapping[str, Encoded]) -> Any:
    """Return images by kind ("clean" and the corruptions) in two rows."""
    columns = (len(images) + 1) // 2
    figure, axes = new_figure(2, columns, 3.1 * columns, 5.2)
    for axis in axes.flat:
        axis.set_axis_off()
    for axis, (kind, encoded) in zip(axes.flat, images.items(), strict=False):
        show_image(axis, encoded, (1, 1))
        axis.set_title(TITLES[kind][1] if kind in TITLES else kind)
    return figure


def _covariate_figures(data: CovariateShiftData, section: TaskSection) -> Iterator[Drawn]:
    found = data.tasks.get(section.task)
    if found and found.example:
        title = "The same image under strong corruptions"
        text = f"Case {found.example.case}, as the networks saw it in the tests under other conditions."
        yield drawn_of(section, "corruptions", title, text, corruption_figure, found.example.images)


DOMAIN_SHIFT = Study(
    "fitted here, tested elsewhere", "a `test_on`", "nothing", True, _run_domain_shift, DomainShiftData, _domain_tables,
)  # fmt: skip
COVARIATE_SHIFT = Study(
    "Tables 6 and 7: corrupted copies, paired", "a corrupted copy in `test_on`", "reads one case", True,
    per_task(
        _compare_copies, lambda tasks: CovariateShiftData(tasks, SETTINGS),
        "no task has a corrupted copy of its cases in test_on",
    ), CovariateShiftData, _covariate_tables, _covariate_figures,
)  # fmt: skip
