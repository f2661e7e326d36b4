"""From units to one document: means with intervals, comparisons, and the facts that tables and figures need.

``RESULTS/summary.json`` is made from the units alone. Metrics of a case are averaged over cases and repeats, with the
bootstrap over groups and repeats; all pipelines of a task share the draws, so that equal numbers have equal intervals.
Pooled metrics have one number per repeat, shown as mean [min, max], which is no interval.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import to_builtins

from segcal.benchmark.comparisons import compare, pairs_of
from segcal.benchmark.job import benchmark_metrics
from segcal.benchmark.pipelines import Pipeline, in_row_groups
from segcal.benchmark.results import ProtocolRecord, Results, UnitResult
from segcal.documents import write_json
from segcal.errors import ArtifactError, InputError
from segcal.metrics import Metric
from segcal.summary import (
    SCHEMA,
    SUMMARY,
    Comparison,
    Estimate,
    MetricFacts,
    PipelineFacts,
    ResultRow,
    RowGroup,
    Summary,
    TaskFacts,
    estimate,
    over_repeats,
)

OFFSETS = Pipeline("mean_logits", "identity").title
# By task, title and target, the units of pipelines that have all their repeats.
Complete = dict[tuple[str, str, str], list[UnitResult]]


def summarise(results: Results) -> Summary:
    """Return the summary of a folder of results."""
    complete = _complete(results)
    if not complete:
        raise InputError(
            f"{results.folder} has no pipeline with all its repeats, but at least one is needed. Run the benchmark."
        )
    protocol = results.protocol
    pipelines = list(dict.fromkeys(unit.unit.pipeline for units in complete.values() for unit in units))
    metrics = benchmark_metrics(protocol.metrics, True)
    rows: list[ResultRow] = []
    comparisons: list[Comparison] = []
    for tested in dict.fromkeys((task, target) for task, _, target in complete):
        own = {title: units for (task, title, target), units in complete.items() if (task, target) == tested}
        found, compared = _summarise_task(*tested, own, metrics, protocol)
        rows += found
        comparisons += compared
    wanted = len({(unit.task, unit.pipeline, unit.test_on) for unit in protocol.units})
    missing = [f"{wanted - len(complete)} of {wanted} pipelines are not finished"] if wanted > len(complete) else []
    return Summary(
        schema=SCHEMA,
        hash=protocol.hash,
        repeats=protocol.repeats,
        bootstrap=protocol.bootstrap,
        fit=protocol.fit,
        notes=(*protocol.notes, *missing),
        metrics={name: MetricFacts(each.title, each.unit, each.better, each.pooled) for name, each in metrics.items()},
        tasks=tuple(_task(results, name, complete) for name in dict.fromkeys(name for name, _, _ in complete)),
        groups=tuple(
            RowGroup(title, tuple(each.title for each in rows)) for title, rows in in_row_groups(pipelines).items()
        ),
        pipelines={each.title: _pipeline(each) for each in pipelines},
        results=tuple(rows),
        comparisons=tuple(comparisons),
    )


def write_summary(results: Results) -> Summary:
    """Make the summary of a folder of results, write it there, and return it."""
    summary = summarise(results)
    write_json(results.folder / SUMMARY, to_builtins(summary))
    return summary


def _complete(results: Results) -> Complete:
    found: Complete = {}
    for each in sorted(results.units, key=lambda each: each.unit.repeat):
        found.setdefault((each.unit.task, each.header.title, each.unit.test_on), []).append(each)
    return {key: units for key, units in found.items() if len(units) == results.protocol.repeats}


def _summarise_task(
    task: str, target: str, own: Mapping[str, list[UnitResult]], metrics: Mapping[str, Metric], protocol: ProtocolRecord
) -> tuple[list[ResultRow], list[Comparison]]:
    bootstrap = protocol.bootstrap
    first = next(iter(own.values()))
    for title, units in own.items():
        if [unit.header.test for unit in units] != [unit.header.test for unit in first]:
            raise ArtifactError(
                f"{title} on {task} was tested on other cases than {first[0].header.title}, but all must share "
                "them. Delete the units of this task and run the benchmark again."
            )
    draws = bootstrap.draws([unit.groups for unit in first])
    single = [name for name, metric in metrics.items() if not metric.pooled]
    values = {title: {name: [unit.column(name) for unit in units] for name in single} for title, units in own.items()}
    pooled = {
        title: {name: [metric(unit.tables) for unit in units] for name, metric in metrics.items() if metric.pooled}
        for title, units in own.items()
    }
    known: dict[bytes, Estimate] = {}  # many pipelines have equal numbers, which are drawn from once
    rows = []
    for title, units in own.items():
        numbers = {}
        for name, columns in values[title].items():
            key = np.concatenate(columns).tobytes()
            known[key] = numbers[name] = known.get(key) or estimate(
                columns, draws, bootstrap.level, metrics[name].bounds
            )
        numbers |= {name: over_repeats(column) for name, column in pooled[title].items()}
        converged = all(unit.header.certificate["converged"] for unit in units)
        rows.append(ResultRow(task, target, title, numbers, converged))
    pipelines = [units[0].unit.pipeline for units in own.values()]
    pairs = pairs_of(pipelines, protocol.compare)
    return rows, compare(task, target, pairs, values, pooled, metrics, draws, bootstrap.level)


def _task(results: Results, name: str, complete: Complete) -> TaskFacts:
    units = next(units for (task, _, target), units in complete.items() if (task, target) == (name, ""))
    members = next(task.members for task in results.protocol.tasks if task.name == name)
    header = units[0].header
    return TaskFacts(
        name=name,
        members=members if isinstance(members, int) else len(members),
        num_classes=header.num_classes,
        class_names=header.class_names,
        background=header.background,
        cases=results.protocol.cases[name],
        voxels=tuple(sum(row.voxels for row in unit.rows) for unit in units),
        cal=tuple(len(unit.header.cal) for unit in units),
        val=tuple(len(unit.header.val) for unit in units),
        test=tuple(len(unit.header.test) for unit in units),
        offsets=_offsets(complete.get((name, OFFSETS, ""), [])),
    )


def _offsets(units: Sequence[UnitResult]) -> dict[str, float | None]:
    found = {row.case: row.metrics.get("free_energy_std") for unit in units for row in unit.rows}
    return {case_id: found[case_id] for case_id in sorted(found)}


def _pipeline(pipeline: Pipeline) -> PipelineFacts:
    made = pipeline.make(2).as_fitted()
    return PipelineFacts(
        pooling=pipeline.pooling,
        calibrator=pipeline.calibrator,
        latex=pipeline.latex,
        translation_invariant=made.translation_invariant,
        preserves=made.preserves,
        pointwise=made.pointwise,
    )
