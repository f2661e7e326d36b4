"""From units to one document: means with intervals, comparisons, and the facts that tables and figures need.

``RESULTS/summary.json`` is made from the units alone. Metrics of a case are averaged over cases and repeats, with the
two-level bootstrap; all pipelines of a task share the draws, so that equal numbers have equal intervals. Pooled metrics
have one number per repeat, shown as mean [min, max].

The paper's matched comparisons are of two pipelines that differ in one property, case by case:

- What does translation invariance do? Matrix scaling against its two TI forms; LTS on logits against log-probabilities.
- What does keeping the decision cost? CDC against CMS_ap and CMS_op, with each pooling.
- What do curves that see their surroundings add? Conic scaling against TS and CMS_ap, and by class against shared.

The second is compared with the first, metric by metric, in paired differences over the test cases of all repeats. It is
*better* or *worse* if the interval of the difference lies on one side of zero, and otherwise there is *no difference*.
A metric that pools voxels over cases (ACE) is better or worse if it is so in every repeat.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from msgspec import to_builtins

from segcal.atomic import write_text
from segcal.benchmark.job import benchmark_metrics
from segcal.benchmark.pipelines import Pipeline, in_row_groups
from segcal.benchmark.results import Results, UnitResult
from segcal.errors import ArtifactError, InputError
from segcal.metrics import Metric
from segcal.summary import (
    SCHEMA,
    SUMMARY,
    Bootstrap,
    Compared,
    Comparison,
    Difference,
    Draws,
    Estimate,
    MetricFacts,
    PipelineFacts,
    ResultRow,
    RowGroup,
    Summary,
    TaskFacts,
    Verdict,
    difference,
    estimate,
    over_repeats,
)

# Pooling, the first calibrator, the second, and what the comparison is about.
PAIRS: tuple[tuple[str, str, str, str], ...] = (
    ("mean_logits", "ms", "ms_c", "translation invariance"),
    ("mean_logits", "ms", "dc", "translation invariance"),
    ("mean_logits", "lts", "lts_ti", "translation invariance"),
    ("mean_probs", "cdc", "cms_ap", "decision preservation"),
    ("mean_probs", "cdc", "cms_op", "decision preservation"),
    ("mean_logits", "cdc", "cms_ap", "decision preservation"),
    ("mean_logits", "cdc", "cms_op", "decision preservation"),
    *(
        (pooling, first, second, "curves that see their surroundings")
        for pooling in ("mean_probs", "mean_logits")
        for first, second in (("ts", "conic"), ("cms_ap", "conic"), ("conic", "conic_class"))
    ),
)
COMPARED = ("nll", "ece", "ba_ece", "ace", "dice")
SHORT = {"nll": "NLL", "ece": "ECE", "ba_ece": "BA-ECE", "ace": "ACE", "dice": "DSC"}
PERCENT = ("dice",)
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
        found, compared = _summarise_task(*tested, own, metrics, protocol.bootstrap)
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
    text = json.dumps(to_builtins(summary), indent=1, ensure_ascii=False, allow_nan=False)
    write_text(results.folder / SUMMARY, text + "\n")
    return summary


def _complete(results: Results) -> Complete:
    found: Complete = {}
    for each in sorted(results.units, key=lambda each: each.unit.repeat):
        found.setdefault((each.unit.task, each.header.title, each.unit.test_on), []).append(each)
    return {key: units for key, units in found.items() if len(units) == results.protocol.repeats}


def _summarise_task(
    task: str,
    target: str,
    own: Mapping[str, list[UnitResult]],
    metrics: Mapping[str, Metric],
    bootstrap: Bootstrap,
) -> tuple[list[ResultRow], list[Comparison]]:
    first = next(iter(own.values()))
    for title, units in own.items():
        if [unit.header.test for unit in units] != [unit.header.test for unit in first]:
            raise ArtifactError(
                f"{title} on {task} was tested on other cases than {first[0].header.title}, but all must share "
                "them. Delete the units of this task and run the benchmark again."
            )
    draws = bootstrap.draws([len(unit.rows) for unit in first])
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
            known[key] = numbers[name] = known.get(key) or estimate(columns, draws, bootstrap.level)
        numbers |= {name: over_repeats(column) for name, column in pooled[title].items()}
        converged = all(unit.header.certificate["converged"] for unit in units)
        rows.append(ResultRow(task, target, title, numbers, converged))
    pipelines = [units[0].unit.pipeline for units in own.values()]
    return rows, compare(task, target, pipelines, values, pooled, metrics, draws, bootstrap.level)


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


def compare(
    task: str,
    test_on: str,
    pipelines: Sequence[Pipeline],
    values: Mapping[str, Mapping[str, Sequence[np.ndarray]]],
    pooled: Mapping[str, Mapping[str, Sequence[float | None]]],
    metrics: Mapping[str, Metric],
    draws: Draws,
    level: float,
) -> list[Comparison]:
    """Compare all pairs of which both pipelines are there.

    By title and metric, `values` are one array per repeat, one number per case, NaN where it is not defined, and
    `pooled` one number per repeat.
    """
    there = {(each.pooling, each.calibrator): each.title for each in pipelines if not each.options}
    found = []
    for pooling, first, second, about in PAIRS:
        one, other = there.get((pooling, first)), there.get((pooling, second))
        if one is None or other is None:
            continue
        outcome = {}
        for name in (each for each in COMPARED if each in metrics):
            better = metrics[name].better or "lower"
            if metrics[name].pooled:
                outcome[name] = compare_repeats(pooled[one][name], pooled[other][name], better)
            else:
                gap = difference(values[one][name], values[other][name], draws, better, level)
                outcome[name] = Compared(verdict_of(gap, better), gap, "cases")
        where = f"{task} tested on {test_on}" if test_on else task
        sentence = f"{where}, {other} against {one}: {_in_words(outcome)}."
        found.append(Comparison(task, test_on, about, one, other, outcome, sentence))
    return found


def compare_repeats(
    first: Sequence[float | None], second: Sequence[float | None], better: Literal["lower", "higher"]
) -> Compared:
    """Compare a number that there is one of in each repeat; the interval is the range over repeats."""
    gaps = [b - a for a, b in zip(first, second, strict=True) if a is not None and b is not None]
    undefined = len(first) - len(gaps)
    if not gaps:
        return Compared("not defined", Difference(None, None, None, 0, undefined, 0, 0, 0), "repeats")
    down, up = sum(gap < 0 for gap in gaps), sum(gap > 0 for gap in gaps)
    good, bad = (down, up) if better == "lower" else (up, down)
    gap = Difference(float(np.mean(gaps)), min(gaps), max(gaps), len(gaps), undefined, good, len(gaps) - down - up, bad)
    return Compared(verdict_of(gap, better), gap, "repeats")


def verdict_of(gap: Difference, better: Literal["lower", "higher"]) -> Verdict:
    """Return what a difference says: it must lie on one side of zero with its whole interval."""
    if gap.value is None or gap.low is None or gap.high is None:
        return "not defined"
    if gap.low <= 0 <= gap.high:
        return "no difference"
    return "better" if (gap.high < 0) == (better == "lower") else "worse"


def _in_words(metrics: Mapping[str, Compared]) -> str:
    parts = []
    for verdict in ("better", "worse"):
        listed = [_phrase(name, found) for name, found in metrics.items() if found.verdict == verdict]
        if listed:
            parts.append(f"{verdict} on {_joined(listed)}")
    same = [_phrase(name, found) for name, found in metrics.items() if found.verdict == "no difference"]
    if same:
        parts.append(f"no difference on {_joined(same)}" if parts else f"no difference on any metric: {_joined(same)}")
    unknown = [SHORT.get(name, name) for name, found in metrics.items() if found.verdict == "not defined"]
    if unknown:
        parts.append(f"not defined: {_joined(unknown)}")
    return "; ".join(parts)


def _phrase(name: str, found: Compared) -> str:
    gap = found.difference
    scale, digits, unit = (100, 2, " points") if name in PERCENT else (1, 4, "")
    assert gap.value is not None
    assert gap.low is not None
    assert gap.high is not None
    low, high = (f"{scale * end:+.{digits}f}" for end in (gap.low, gap.high))
    return (
        f"{SHORT.get(name, name)} ({scale * gap.value:+.{digits}f}{unit} [{low}, {high}], "
        f"better in {gap.better} and worse in {gap.worse} of {gap.cases} {found.of})"
    )


def _joined(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
