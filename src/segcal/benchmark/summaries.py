"""From units to one document: means with intervals, matched comparisons, and the facts that tables and figures need.

``RESULTS/summary.json`` is made from the units alone. Metrics of a case are averaged over cases and repeats, with the
bootstrap over groups and repeats. All pipelines of a task share the replicates, so that equal numbers have equal
intervals. Pooled metrics have one number per repeat, shown as mean [min, max], which is no interval.

Comparisons are those that a protocol asks for, and those of the paper: of two pipelines that differ in one property.

- What does translation invariance do? Matrix scaling against its two TI forms; LTS on logits against log-probabilities.
- What does keeping the decision cost? CDC against CMS_ap and CMS_op, with each pooling.
- What do curves that see the neighbourhood add? Conic scaling against TS and CMS_ap, and by class against shared.

The second is compared with the first, metric by metric, in paired differences over the test cases of all repeats. It is
*better* or *worse* if the interval of the difference lies on one side of zero, and otherwise there is *no difference*.
That is a test of the mean difference at the level of the interval, one for each metric and pair. Of many without any
difference, one in twenty is better or worse by chance. A metric that pools voxels over cases (ACE) is better or worse
if it is so in every repeat. That is no test: without any difference three independent repeats agree in one of four, and
repeats that share cases more often. So sentences give the range over fewer than five repeats without a verdict. They
leave out metrics that are equal in every test.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from msgspec import to_builtins

from segcal.benchmark.job import benchmark_metrics
from segcal.benchmark.protocol import Pipeline, in_row_groups
from segcal.benchmark.results import ProtocolRecord, Results, UnitResult
from segcal.documents import write_json
from segcal.errors import ArtifactError, InputError
from segcal.metrics import Metric
from segcal.resample import FEW_GROUPS, Draws
from segcal.summary import (
    SCHEMA,
    SUMMARY,
    TOO_FEW,
    Compared,
    Comparison,
    Difference,
    Estimate,
    MetricFacts,
    PipelineFacts,
    ResultRow,
    RowGroup,
    Summary,
    TaskFacts,
    difference,
    estimate,
    over_repeats,
)

OFFSETS = Pipeline("mean_logits", "identity").title
# By task, title and target, the units of pipelines that have all their repeats.
Complete = dict[tuple[str, str, str], list[UnitResult]]
# Pooling, the first calibrator, the second, and what the comparison is about.
PAIRS: tuple[tuple[str, str, str, str], ...] = (
    ("mean_logits", "ms", "ms_c", "translation invariance"),
    ("mean_logits", "ms", "dc", "translation invariance"),
    ("mean_logits", "lts", "lts_ti", "translation invariance"),
    *(
        (pooling, "cdc", second, "decision preservation")
        for pooling in ("mean_probs", "mean_logits")
        for second in ("cms_ap", "cms_op")
    ),
    *(
        (pooling, first, second, "curves that see the neighbourhood")
        for pooling in ("mean_probs", "mean_logits")
        for first, second in (("ts", "conic"), ("cms_ap", "conic"), ("conic", "conic_class"))
    ),
)
# Metrics that are compared, as sentences name them.
SHORT = {"nll": "NLL", "ece": "ECE", "ba_ece": "BA-ECE", "ace": "ACE", "dice": "DSC"}
PERCENT = ("dice",)
# Two repeats without any difference agree in sign half of the time, five in one of sixteen.
FEW_REPEATS = 5
FEW_SAID = f"fewer than {FEW_REPEATS} repeats, so without a verdict"
# What a comparison is about that a protocol asks for.
ASKED = "asked for"


def write_summary(results: Results) -> Summary:
    """Make the summary of a folder of results, write it there, and return it."""
    summary = summarise(results)
    write_json(results.folder / SUMMARY, to_builtins(summary))
    return summary


def summarise(results: Results) -> Summary:
    """Return the summary of a folder of results."""
    protocol = results.protocol
    found: Complete = {}
    for each in sorted(results.units, key=lambda each: each.unit.repeat):
        found.setdefault((each.unit.task, each.header.title, each.unit.test_on), []).append(each)
    complete = {key: units for key, units in found.items() if len(units) == protocol.repeats}
    if not complete:
        raise InputError(
            f"{results.folder} has no pipeline with all its repeats, but at least one is needed. Run the benchmark."
        )
    pipelines = list(dict.fromkeys(unit.unit.pipeline for units in complete.values() for unit in units))
    metrics: dict[str, Metric] = {}
    rows: list[ResultRow] = []
    comparisons: list[Comparison] = []
    for tested in dict.fromkeys((task, target) for task, _, target in complete):
        own = {title: units for (task, title, target), units in complete.items() if (task, target) == tested}
        chosen = benchmark_metrics(protocol.metrics, True, next(iter(own.values()))[0].header.raters)
        metrics |= chosen
        numbers, compared = _summarise_task(*tested, own, chosen, protocol)
        rows += numbers
        comparisons += compared
    wanted = len({(unit.task, unit.pipeline, unit.test_on) for unit in protocol.units})
    missing = [f"{wanted - len(complete)} of {wanted} pipelines are not finished"] if wanted > len(complete) else []
    groups = in_row_groups(pipelines).items()
    few = _few({task: units for (task, _, target), units in complete.items() if not target})
    return Summary(
        schema=SCHEMA,
        hash=protocol.hash,
        repeats=protocol.repeats,
        bootstrap=protocol.bootstrap,
        fit=protocol.fit,
        notes=(*protocol.notes, *few, *missing),
        metrics={name: MetricFacts(each.title, each.unit, each.better, each.pooled) for name, each in metrics.items()},
        tasks=tuple(_task(protocol, name, complete) for name in dict.fromkeys(name for name, _, _ in complete)),
        groups=tuple(RowGroup(title, tuple(each.title for each in listed)) for title, listed in groups),
        pipelines={each.title: _pipeline(each) for each in pipelines},
        results=tuple(rows),
        comparisons=tuple(comparisons),
    )


def _few(tested: Mapping[str, list[UnitResult]]) -> list[str]:
    """Say of which tasks a repeat tests so few groups that intervals are unreliable."""
    found = []
    for task, units in tested.items():
        fewest = min(units, key=lambda each: len({*each.groups}))
        number = len({*fewest.groups})
        if number < FEW_GROUPS:
            noun = "cases" if number == len(fewest.groups) else "groups"
            more = f"; use at least {FEW_REPEATS} repeats" if len(units) < FEW_REPEATS else ""
            found.append(
                f"{task} is tested on {number} {noun} per repeat: "
                f"intervals over fewer than {FEW_GROUPS} are unreliable{more}"
            )
    return found


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
        title: {
            name: [metric(unit.total.tables) for unit in units] for name, metric in metrics.items() if metric.pooled
        }
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
    pairs = pairs_of([units[0].unit.pipeline for units in own.values()], protocol.compare)
    return rows, compare(task, target, pairs, values, pooled, metrics, draws, bootstrap.level)


def _task(protocol: ProtocolRecord, name: str, complete: Complete) -> TaskFacts:
    units = next(units for (task, _, target), units in complete.items() if (task, target) == (name, ""))
    members = next(task.members for task in protocol.tasks if task.name == name)
    measured = [row for unit in complete.get((name, OFFSETS, ""), []) for row in unit.rows]
    offsets = {row.case: row.metrics.get("free_energy_std") for row in measured}
    header = units[0].header
    return TaskFacts(
        name=name,
        members=members if isinstance(members, int) else len(members),
        num_classes=header.num_classes,
        class_names=header.class_names,
        background=header.background,
        cases=protocol.cases[name],
        voxels=tuple(sum(row.voxels for row in unit.rows) for unit in units),
        cal=tuple(len(unit.header.cal) for unit in units),
        val=tuple(len(unit.header.val) for unit in units),
        test=tuple(len(unit.header.test) for unit in units),
        offsets=dict(sorted(offsets.items())),
        raters="" if header.raters is None else str(header.raters),
    )


def _pipeline(pipeline: Pipeline) -> PipelineFacts:
    made = pipeline.make(2).as_fitted()
    promises = (made.translation_invariant, made.preserves, made.pointwise)
    return PipelineFacts(pipeline.pooling, pipeline.calibrator, pipeline.latex, *promises)


def pairs_of(pipelines: Sequence[Pipeline], asked: Sequence[tuple[str, str]]) -> list[tuple[str, str, str]]:
    """Return the pairs of which both pipelines are there: those that were asked for, by title, then the paper's."""
    titles = {each.title for each in pipelines}
    there = {(each.pooling, each.calibrator): each.title for each in pipelines if not each.options}
    found = {(one, other): ASKED for one, other in asked if {one, other} <= titles}
    for pooling, first, second, about in PAIRS:
        one, other = there.get((pooling, first)), there.get((pooling, second))
        if one is not None and other is not None:
            found.setdefault((one, other), about)
    return [(one, other, about) for (one, other), about in found.items()]


def compare(
    task: str,
    test_on: str,
    pairs: Sequence[tuple[str, str, str]],
    values: Mapping[str, Mapping[str, Sequence[np.ndarray]]],
    pooled: Mapping[str, Mapping[str, Sequence[float | None]]],
    metrics: Mapping[str, Metric],
    draws: Draws,
    level: float,
) -> list[Comparison]:
    """Compare the two pipelines of each pair: first, second, and what the comparison is about.

    By title and metric, `values` are one array per repeat with one number per case, NaN where it is not defined.
    `pooled` has one number per repeat.
    """
    found = []
    for one, other, about in pairs:
        outcome = {}
        for name in (each for each in SHORT if each in metrics):
            better = metrics[name].better or "lower"
            if metrics[name].pooled:
                outcome[name] = compare_repeats(pooled[one][name], pooled[other][name], better)
            else:
                gap = difference(values[one][name], values[other][name], draws, better, level)
                outcome[name] = Compared(gap.verdict(better), gap, "cases")
        where = f"{task} tested on {test_on}" if test_on else task
        sentence = f"{where}, {other} against {one}: {_in_words(outcome, len(draws.sizes))}."
        found.append(Comparison(task, test_on, about, one, other, outcome, sentence))
    return found


def compare_repeats(
    first: Sequence[float | None], second: Sequence[float | None], better: Literal["lower", "higher"]
) -> Compared:
    """Compare a number that there is one of in each repeat; the interval is the range over repeats."""
    gaps = [b - a for a, b in zip(first, second, strict=True) if a is not None and b is not None]
    range_of, undefined = over_repeats(gaps), len(first) - len(gaps)
    down, up = sum(gap < 0 for gap in gaps), sum(gap > 0 for gap in gaps)
    good, bad = (down, up) if better == "lower" else (up, down)
    ends = (range_of.value, range_of.low, range_of.high)
    gap = Difference(*ends, len(gaps), undefined, good, len(gaps) - down - up, bad)
    return Compared(gap.verdict(better), gap, "repeats")


def _in_words(metrics: Mapping[str, Compared], repeats: int) -> str:
    tested = "tests" if repeats > 1 else "cases"  # a case may be tested in several repeats
    said: dict[str, list[str]] = {}
    for name, found in metrics.items():
        gap, verdict = found.difference, str(found.verdict)
        if gap.equal == gap.cases > 0:
            continue
        if verdict != "not defined":
            scale, digits, unit = (100, 2, " points") if name in PERCENT else (1, 4, "")
            ends = (end for end in (gap.value, gap.low, gap.high) if end is not None)
            value, low, high = (f"{scale * end:+.{digits}f}" for end in ends)
            noun, range_of = (tested, "") if found.of == "cases" else (found.of, ", range")
            few = found.of == "repeats" and gap.cases < FEW_REPEATS
            counts = f"better in {gap.better} and worse in {gap.worse} of {gap.cases} {noun}"
            text = f"{SHORT[name]} ({value}{unit}{range_of} [{low}, {high}], {counts})"
            said.setdefault(FEW_SAID if few else verdict, []).append(text)
        else:
            said.setdefault(verdict if gap.value is None else TOO_FEW, []).append(SHORT[name])
    if not said:
        return "equal in every test"
    headings = {
        "better": "better on ",
        "worse": "worse on ",
        "no difference": f"no measurable difference on {'any metric: ' if len(said) == 1 else ''}",
        FEW_SAID: f"{FEW_SAID}: ",
        "not defined": "not defined: ",
        TOO_FEW: f"{TOO_FEW}: ",
    }
    return "; ".join(f"{words}{_joined(said[verdict])}" for verdict, words in headings.items() if verdict in said)


def _joined(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
