"""The paper's tables from the summary of a benchmark.

Table 1: tasks and splits. Table 2: calibrators and their parameters. Table 3: how much the offset of the pooled logits
varies. Table 4: the main results. Table 8: the same with intervals, one table per task. Tests on other tasks have
tables in the layout of Table 7. Comparisons of pipelines have a table of paired differences. Tables 5 and 6 belong to
studies.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from segcal.calibrators import make_calibrator
from segcal.metrics import METRICS
from segcal.report.table import Cell, Column, Group, Row, Table, quartiles
from segcal.summary import Estimate, PipelineFacts, Summary

FOLDER = "tables"
KEEPS = {"order": "order", "argmax": "argmax", None: "×"}
FLIPS = "flip_rate"
# The two halves of Table 2.
GLOBAL, OTHERS = "Global calibrators", "Spatially adaptive or class-conditional calibrators"
CONDITIONAL = ("cdc", "cms_ap", "cms_op")
SHOWN = {
    "nll": Column("NLL"),
    "rater_entropy": Column("least NLL"),
    "brier_to_share": Column("Brier to share"),
    "dice": Column("DSC", digits=1, scale=100),
    "dice (majority)": Column("DSC, majority", digits=1, scale=100),
    "rater_dice": Column("DSC of raters", digits=1, scale=100),
    "volume_crps": Column("volume CRPS"),
    "ece": Column("ECE"),
    "ba_ece": Column("BA-ECE"),
    "ace": Column("ACE"),
    FLIPS: Column("Flip", digits=1, scale=100),
}
# The convention of other libraries, beside the paper's in the tables of single tasks.
FIELD = {"ece_field": Column("ECE (field)")}
SMALL = 0.01
BINS = ("; ".join(f"{SHOWN[name].title}: {METRICS[name].convention}" for name in ("ece", "ace")) + ".",)


def make_tables(summary: Summary) -> dict[str, Table]:
    """Return the tables of a summary, by the stem of their files."""
    title, names = "Calibration and segmentation on the test cases", [task.name for task in summary.tasks]
    tables = {
        "table1_tasks": _tasks_table(summary),
        "table2_calibrators": _calibrators_table(summary),
        "table3_offsets": _offsets_table(summary),
        "table4_results": _results(summary, title, [(name, "", name) for name in names], intervals=False),
    }
    tables |= {f"table8_{name}": task_table(summary, name) for name in names}
    others: dict[str, dict[str, None]] = {}
    for row in summary.results:
        if row.test_on:
            others.setdefault(row.task, {})[row.test_on] = None
    for task, own in others.items():
        blocks = [(task, other, other) for other in own]
        tables[f"shift_{task}"] = _results(summary, f"Fitted on {task}, tested elsewhere", blocks, intervals=False)
    return tables | ({"comparisons": _comparisons_table(summary)} if summary.comparisons else {})


def write_tables(summary: Summary, folder: str | Path, overwrite: bool = False) -> list[Path]:
    """Write the tables of a summary into a folder of results and return their paths."""
    tables = make_tables(summary)
    return [path for stem, table in tables.items() for path in table.write(Path(folder) / FOLDER, stem, overwrite)]


def _tasks_table(summary: Summary) -> Table:
    """Return Table 1: classes, members and splits of each task."""
    columns = tuple(Column(title, digits=0) for title in ("C", "M", "cal", "val", "test", "cases"))
    columns += (Column("raters"),) * any(task.raters for task in summary.tasks)
    rows = []
    for task in summary.tasks:
        parts = [
            Cell(sizes[0] if min(sizes) == max(sizes) else f"{min(sizes)}–{max(sizes)}")
            for sizes in (task.cal, task.val, task.test)
        ]
        own = (Cell(task.num_classes), Cell(task.members), *parts, Cell(task.cases), Cell(task.raters or None))
        rows.append(Row(task.name, own[: len(columns)]))
    note = f"Divided {summary.repeats} times anew; cases of one group stay together, so sizes may differ a little."
    return Table("Tasks, classes, ensemble members and splits", "Task", columns, (Group("", tuple(rows)),), (note,))


def _calibrators_table(summary: Summary) -> Table:
    """Return Table 2: promises, and fitted / identifiable parameters for the class counts of the tasks."""
    sizes = {task.name: task.num_classes for task in summary.tasks}
    spans = [Column(f"{name} (C={size})") for name, size in sizes.items()]
    columns = (Column("TI"), Column("keeps"), *spans)
    groups: dict[str, list[Row]] = {GLOBAL: [], OTHERS: []}
    for name, facts in {each.calibrator: each for each in summary.pipelines.values()}.items():
        if name == "identity":
            continue
        made = [make_calibrator(name, size).as_fitted() for size in sizes.values()]
        cells = [Cell(f"{each.num_parameters()}/{each.num_identifiable()}") for each in made]
        promises = (Cell("✓" if facts.translation_invariant else "×"), Cell(KEEPS[facts.preserves]))
        row = Row(name, (*promises, *cells))
        groups[OTHERS if name in CONDITIONAL or not facts.pointwise else GLOBAL].append(row)
    listed = tuple(Group(title, tuple(rows)) for title, rows in groups.items() if rows)
    note = "TI: the logits' offset does not matter. Parameters: fitted / identifiable."
    return Table("Calibrators: promises and parameters", "Calibrator", columns, listed, (note,))


def _offsets_table(summary: Summary) -> Table:
    """Return Table 3: the spread of the free energy of the pooled logits over the voxels of a case."""
    rows = [Row(task.name, (Cell(len(task.offsets)), quartiles(list(task.offsets.values())))) for task in summary.tasks]
    columns = (Column("cases", digits=0), Column("mean [quartiles]", digits=2))
    note = (
        "Standard deviation over the voxels of a case, mean over test cases [lower quartile, median, upper quartile]."
    )
    title = "Spatial variability of the pooled logits' free energy"
    return Table(title, "Task", columns, (Group("", tuple(rows)),), (note,))


def task_table(summary: Summary, task: str, intervals: bool = True) -> Table:
    """Return the part of Table 8 for one task, or of Table 4 without intervals."""
    return _results(summary, f"Results on {task}", [(task, "", "")], intervals, SHOWN | FIELD)


def _comparisons_table(summary: Summary) -> Table:
    """Return the paired differences of compared pipelines, with intervals; those that were asked for come first."""
    names = [name for name in SHOWN if any(name in each.metrics for each in summary.comparisons)]
    groups: dict[str, list[Row]] = {}
    for each in summary.comparisons:
        where = f"{each.task} tested on {each.test_on}" if each.test_on else each.task
        gaps = [each.metrics[name].difference if name in each.metrics else None for name in names]
        cells = tuple(Cell(None) if gap is None else Cell(gap.value, gap.low, gap.high) for gap in gaps)
        groups.setdefault(f"{where}: {each.about}", []).append(Row(f"{each.second} - {each.first}", cells))
    notes = [
        f"Paired differences over test cases [{100 * summary.bootstrap.level:g} % interval, each for itself; pooled "
        "metrics: the range over repeats, which is no interval]. DSC in points.",
        *BINS,
    ]
    listed = tuple(Group(title, tuple(rows)) for title, rows in groups.items())
    columns = tuple(
        _fine(SHOWN[name], [row.cells[n] for one in listed for row in one.rows]) for n, name in enumerate(names)
    )
    return Table("Pipelines compared case by case", "Second - first", columns, listed, tuple(notes))


def _results(
    summary: Summary,
    title: str,
    blocks: Sequence[tuple[str, str, str]],
    intervals: bool,
    shown: Mapping[str, Column] = SHOWN,
) -> Table:
    """Return a table of results; a block of columns is a task, the task tested on, and a heading."""
    numbers = {(row.task, row.test_on, row.pipeline): row.metrics for row in summary.results}
    listed = [
        (task, other, heading, name)
        for task, other, heading in blocks
        for name in shown
        if name in summary.metrics and any(name in own for key, own in numbers.items() if key[:2] == (task, other))
    ]
    columns = tuple(
        replace(shown[name], span=heading, better=summary.metrics[name].better) for _, _, heading, name in listed
    )
    groups = []
    for group in summary.groups:
        rows = []
        for pipeline in group.rows:
            found = [(numbers.get((task, other, pipeline)), name) for task, other, _, name in listed]
            if any(own for own, _ in found):
                facts = summary.pipelines[pipeline]
                cells = tuple(_cell(own, name, facts, intervals) for own, name in found)
                mark, latex = ("", "") if facts.translation_invariant else (" ×", r" [$\times$]")
                rows.append(Row(pipeline + mark, cells, facts.latex + latex))
        if rows:
            groups.append(Group(group.title, tuple(rows)))
    columns = tuple(
        _fine(column, [row.cells[n] for one in groups for row in one.rows]) for n, column in enumerate(columns)
    )
    named = {name for *_, name in listed}
    notes = _notes(summary, intervals, "rater_entropy" in named)
    if FIELD.keys() & named:
        notes += ("ECE (field): 15 bins, pooled over voxels, as other libraries have it.",)
    return Table(title, "Pipeline", columns, tuple(groups), notes)


def _fine(column: Column, cells: Sequence[Cell]) -> Column:
    """Return a column with one decimal more where three would leave a small number with one digit."""
    small = [cell for cell in cells if isinstance(cell.value, float) and 0 < abs(cell.value) < SMALL]
    return replace(column, digits=column.digits + 1) if small and column.scale == 1 else column


def _cell(metrics: Mapping[str, Estimate] | None, name: str, facts: PipelineFacts, intervals: bool) -> Cell:
    # A calibrator that keeps the decision flips nothing by construction: the paper's dash.
    if metrics is None or name not in metrics or (name == FLIPS and facts.preserves is not None):
        return Cell(None)
    found = metrics[name]
    return Cell(found.value, found.low, found.high) if intervals else Cell(found.value)


def _notes(summary: Summary, intervals: bool, raters: bool) -> tuple[str, ...]:
    level = 100 * summary.bootstrap.level
    notes = ["DSC and Flip in %. — not applicable; × not translation-invariant. Bold: best of the column as shown."]
    notes += BINS
    if raters:
        notes.append(
            "Numbers are means over raters. The least NLL is what raters themselves leave, and DSC of raters that of "
            "each pair of them."
        )
    if intervals:
        notes.append(
            f"[{level:g} % interval of a bootstrap over groups of cases and repeats; ACE: min, max over "
            f"{summary.repeats} repeats]. All pipelines share the replicates."
        )
    open_fits = sorted({row.pipeline for row in summary.results if not row.converged})
    if open_fits:
        notes.append(f"Not fitted to their tolerance in some repeat: {', '.join(open_fits)}.")
    return tuple(notes)
