"""From a benchmark, its summary and its studies to the document that the report page shows.

The numbers that the verdict on a task is written from are read from the units of the benchmark.
"""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from segcal.benchmark.protocol import Pipeline
from segcal.benchmark.results import Results, Unit, UnitResult, total_flips, total_tables
from segcal.calibrators import make_calibrator
from segcal.errors import SegcalError
from segcal.evaluation.audit import audit
from segcal.fitting.artifact import load
from segcal.metrics import METRICS
from segcal.names import class_titles
from segcal.report import document as doc
from segcal.report.document import BINS, band_rows, class_rows, curves_of, pipeline_curves, shown_classes
from segcal.report.verdict import Change, Facts, FlipCount, MeanCalibration, PartCounts, Verdict, make_verdict
from segcal.statistics import CaseTables
from segcal.studies.study import paired_differences
from segcal.studies.worst_cases import WorstCasesData
from segcal.summary import Summary

UNCALIBRATED = Pipeline("mean_logits", "identity")
MATRIX = Pipeline("mean_logits", "ms")
BY_RULE = "on {count} validation cases that it was not fitted to, as segcal fit does"
BY_LOSS = "because it has the lowest loss on the validation voxels of those that keep the mask"
# So many names of cases are listed of each subset, and the numbers of so many test cases are kept one by one.
MOST_NAMES = 200
MOST_CASES = 200
# Of a number in the table; shown are three.
DIGITS = 6


def make_document(
    results: Results, summary: Summary, studies: Mapping[str, Struct], reduced: Sequence[str] = ()
) -> doc.Document:
    """Return the document of a benchmark, its summary and the data of its studies, by name."""
    worst = studies.get("worst_cases")
    assert worst is None or isinstance(worst, WorstCasesData)
    tasks = [task.name for task in summary.tasks]
    chosen = {task: choose(results, summary, worst, task) for task in tasks}
    targets = dict.fromkeys((row.task, row.test_on) for row in summary.results)
    notes = (
        [f"This is a demonstration on synthetic data, reduced to take minutes: {'; '.join(reduced)}."]
        if reduced
        else []
    )
    examples = {task: doc.CaseExamples([], 0, "") for task in tasks}
    for task, each in () if worst is None else worst.tasks.items():
        if task in tasks:
            examples[task] = doc.CaseExamples(each.cases, each.of, each.chosen.title, each.temperature)
    calibrators = [
        make_calibrator(name, 2) for name in sorted({each.calibrator for each in summary.pipelines.values()})
    ]
    return doc.Document(
        kind="benchmark",
        title=", ".join(tasks),
        level=summary.bootstrap.level,
        notes=[*summary.notes, *notes],
        metrics=doc.metric_words({name: METRICS[name] for name in summary.metrics if name in METRICS}),
        calibrators={each.name: doc.CalibratorWords(each.title, each.sentence) for each in calibrators},
        sections=[task_section(results, summary, task, target, *chosen[task]) for task, target in targets],
        comparisons=[each.sentence for each in summary.comparisons],
        examples=examples,
        rule="" if worst is None else worst.rule,
        provenance=provenance(results, {task: pipeline for task, (pipeline, _) in chosen.items()}),
    )


def choose(results: Results, summary: Summary, worst: WorstCasesData | None, task: str) -> tuple[Pipeline, str]:
    """Return the pipeline that the verdict on a task is about, and how it was chosen, in words.

    The study of the worst cases has chosen one by the rule of `segcal fit`. Without it, the pipeline of lowest
    validation loss among those that keep the mask and do not see the offset is taken.
    """
    complete = [row.pipeline for row in summary.results if (row.task, row.test_on) == (task, "")]
    units = {title: results.repeats(task, title)[0] for title in complete}
    known = None if worst is None else worst.tasks.get(task)
    if known is not None and known.chosen.title in units:
        unit = units[known.chosen.title]
        count = len(unit.header.val)
        return unit.unit.pipeline, BY_RULE.format(count=count) if count else ""
    pipelines = [unit.unit.pipeline for unit in units.values()]
    pooled = [each for each in pipelines if each.pooling == "mean_logits"] or pipelines
    safe = [each for each in pooled if each.translation_invariant and each.preserves and each.calibrator != "identity"]
    found = ((each, units[each.title].header.certificate.get("validation_nll")) for each in safe)
    scored = {each: loss for each, loss in found if loss is not None}
    if scored:
        return min(scored, key=scored.__getitem__), BY_LOSS
    return (safe or pooled)[0], ""


def task_section(
    results: Results, summary: Summary, task: str, test_on: str, chosen: Pipeline, why: str
) -> doc.TaskSection:
    """Return the section of a task, or of another (`test_on`) that its calibrators were tested on.

    `chosen` is the pipeline that the verdict is about, and `why` says how it was chosen.
    """
    rows = {row.pipeline: row for row in summary.results if (row.task, row.test_on) == (task, test_on)}
    units = {title: results.repeats(task, title, test_on) for title in rows}
    tables = {title: total_tables(own) for title, own in units.items()}
    classes = shown_classes(next(iter(tables.values())))
    first = next(iter(units.values()))
    header = first[0].header
    baseline, level = Pipeline(chosen.pooling, "identity").title, summary.bootstrap.level
    judged = {baseline, chosen.title} <= set(units)
    shown = []
    for title, row in rows.items():
        facts, own = summary.pipelines[title], units[title][0].header
        numbers = {name: doc.RowNumber.of(one, DIGITS) for name, one in row.metrics.items()}
        promises = (facts.translation_invariant, facts.preserves, own.parameters, own.identifiable, row.converged)
        shown.append(doc.PipelineRow(title, facts.pooling, facts.calibrator, *promises, numbers))
    return doc.TaskSection(
        id=f"{task}→{test_on}" if test_on else task,
        task=task,
        test_on=test_on,
        classes=list(class_titles(header.class_names, header.num_classes)),
        shown_classes=classes,
        background=header.background,
        baseline=baseline if baseline in units else None,
        chosen=chosen.title if chosen.title in units else None,
        verdict=_verdict(results, summary, task, test_on, chosen, why) if judged else None,
        division=_counts(first),
        rows=shown,
        curves={
            title: pipeline_curves(
                [curves_of(u.total.shown) for u in own], [u.total.spread for u in own], level, classes
            )
            for title, own in units.items()
        },
        per_class={title: class_rows(own) for title, own in tables.items()},
        bands={title: band_rows(own, total_flips(units[title]).flips) for title, own in tables.items()},
        cases=case_columns({title: own[0] for title, own in units.items()}),
    )


def case_columns(units: Mapping[str, UnitResult]) -> doc.CaseColumns:
    """Return the numbers of every test case of some units, by pipeline; of many cases the first."""
    dice, ece, nll = (
        {
            title: [None if number is None else round(number, 6) for number in unit.numbers(name)[:MOST_CASES]]
            for title, unit in units.items()
        }
        for name in ("dice", "ece", "nll")
    )
    rows = next(iter(units.values())).rows
    return doc.CaseColumns([row.case for row in rows[:MOST_CASES]], len(rows), dice, ece, nll)


def _verdict(results: Results, summary: Summary, task: str, test_on: str, chosen: Pipeline, why: str) -> Verdict:
    """Return the verdict, which of a task itself says what becomes of it elsewhere."""
    needed = {chosen.title, Pipeline(chosen.pooling, "identity").title}
    done: dict[str, set[str]] = {}
    for row in summary.results:
        if row.task == task and row.test_on and not test_on:
            done.setdefault(row.test_on, set()).add(row.pipeline)
    others = [target for target, titles in done.items() if needed <= titles]
    facts, *shifted = (find_facts(results, summary, task, chosen, target) for target in (test_on, *others))
    counts = _counts(results.repeats(task, chosen.title, test_on))
    return make_verdict(facts, counts, summary.bootstrap.level, why, shifted)


def _counts(units: Sequence[UnitResult]) -> PartCounts:
    header = units[0].header
    return PartCounts(len(header.cal), len(header.val), len(header.test), len(units))


def provenance(results: Results, chosen: Mapping[str, Pipeline]) -> doc.Provenance:
    """Return what holds for the whole benchmark, and what is known about the chosen pipeline of each task."""
    protocol = results.protocol
    return doc.Provenance(
        segcal=", ".join(sorted({unit.header.segcal for unit in results.units})),
        fingerprints=protocol.fingerprints,
        protocol_hash=protocol.hash,
        seed=protocol.seed,
        repeats=protocol.repeats,
        bootstrap=protocol.bootstrap,
        fit=protocol.fit,
        metrics=list(protocol.metrics),
        calibrators={task: _calibrator(results, task, pipeline) for task, pipeline in chosen.items()},
    )


def _calibrator(results: Results, task: str, chosen: Pipeline) -> doc.CalibratorFacts:
    """Return the facts of a calibrator as it was fitted in the first repeat; without an audit if it is gone."""
    header = results.repeats(task, chosen.title)[0].header
    names = {"cal": header.cal, "val": header.val, "test": header.test}
    try:
        found = audit(load(results.folder / Unit(task=task, repeat=0, pipeline=chosen).calibrator_path).calibrator)
        audited = doc.AuditFacts(found.passed, str(found))
    except (SegcalError, OSError):
        audited = None
    return doc.CalibratorFacts(
        pipeline=chosen.title,
        pooling=chosen.pooling,
        certificate={name: header.certificate.get(name) for name in doc.CERTIFIED},
        audit=audited,
        cases={part: doc.CaseNames(len(own), list(own[:MOST_NAMES])) for part, own in names.items()},
    )


def find_facts(results: Results, summary: Summary, task: str, chosen: Pipeline, test_on: str = "") -> Facts:
    """Collect the facts of a task, or of another one (`test_on`) that its calibrators were tested on.

    The chosen pipeline is judged against the same pooling without a calibrator.
    """
    before = results.repeats(task, Pipeline(chosen.pooling, "identity").title, test_on)
    after = results.repeats(task, chosen.title, test_on)
    matrix = results.repeats(task, MATRIX.title, test_on)
    matrix = matrix if len(matrix) == len(before) else []  # not finished
    tables, calibrated = total_tables(before), total_tables(after)
    return Facts(
        task=test_on or task,
        calibrator=chosen.calibrator,
        title=chosen.make(2).title,
        keeps=chosen.preserves is not None,
        everywhere=MeanCalibration.of(tables.reliability[BINS]["all"]),
        change=_compare_units(before, after, summary),
        flips=_count_flips(after),
        everywhere_after=MeanCalibration.of(calibrated.reliability[BINS]["all"]),
        boundary=_boundary(tables),
        boundary_after=_boundary(calibrated),
        matrix_flips=_count_flips(matrix) if matrix else None,
        matrix_change=_compare_units(before, matrix, summary) if matrix else {},
    )


def _compare_units(before: Sequence[UnitResult], after: Sequence[UnitResult], summary: Summary) -> dict[str, Change]:
    """Return the paired change of each metric, with the intervals of the benchmark's bootstrap."""
    first, second = (
        summary.numbers(units[0].unit.task, units[0].header.title, units[0].unit.test_on) for units in (before, after)
    )
    gaps = paired_differences(before, after, summary.bootstrap)
    return {name: Change(first[name].value, second[name].value, gap) for name, gap in gaps.items()}


def _count_flips(units: Sequence[UnitResult]) -> FlipCount:
    """Return what was flipped in the test cases of all repeats."""
    counted = total_flips(units)
    harmful, beneficial, neutral = counted.flips.sum(axis=0).tolist()
    return FlipCount(int(counted.voxels.sum()), (harmful, beneficial, neutral))


def _boundary(tables: CaseTables) -> MeanCalibration | None:
    if tables.bands is None or not tables.bands.curves[BINS].count[0].any():
        return None
    return MeanCalibration.of(tables.bands.curves[BINS][0])
