"""From units to one document: means with intervals, comparisons, and the facts that tables and figures need.

``RESULTS/summary.json`` is made from the units alone. Metrics of a case are averaged over cases and repeats, with the
two-level bootstrap; all pipelines of a task share the draws, so that equal numbers have equal intervals. Pooled metrics
have one number a repeat, shown as mean [min, max].
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from segcal.atomic import write_text
from segcal.benchmark.comparisons import compare
from segcal.benchmark.counting import benchmark_metrics
from segcal.benchmark.pipelines import Pipeline, in_row_groups
from segcal.benchmark.results import Results, UnitResult
from segcal.errors import ArtifactError, InputError
from segcal.metrics import Metric
from segcal.report.document import SCHEMA, SUMMARY
from segcal.summary import Draws, estimate_all, over_repeats

OFFSETS = Pipeline("mean_logits", "identity").title


def summarise(results: Results) -> dict[str, Any]:
    """Return the summary of a folder of results, as plain data."""
    complete = _complete(results)
    if not complete:
        raise InputError(
            f"{results.folder} has no pipeline with all its repeats, but at least one is needed. Run the benchmark."
        )
    pipelines = list(dict.fromkeys(unit.unit.pipeline for units in complete.values() for unit in units))
    metrics = benchmark_metrics(tuple(results.protocol["metrics"]), True)
    found: list[dict[str, Any]] = []
    compared: list[dict[str, Any]] = []
    for task, target in dict.fromkeys((task, target) for task, _, target in complete):
        own = {title: units for (name, title, place), units in complete.items() if (name, place) == (task, target)}
        rows, comparisons = _summarise_task(task, target, own, metrics, results.protocol["bootstrap"])
        found += rows
        compared += comparisons
    return {
        "schema": SCHEMA,
        "hash": results.protocol["hash"],
        "repeats": results.protocol["repeats"],
        "bootstrap": results.protocol["bootstrap"],
        "fit": results.protocol["fit"],
        "notes": [*results.protocol["notes"], *_missing(results, complete)],
        "metrics": {name: _facts(metric) for name, metric in metrics.items()},
        "tasks": [_task(results, name, complete) for name in dict.fromkeys(name for name, _, _ in complete)],
        "groups": [
            {"title": title, "rows": [each.title for each in rows]} for title, rows in in_row_groups(pipelines).items()
        ],
        "pipelines": {each.title: _pipeline(each) for each in pipelines},
        "results": found,
        "comparisons": compared,
    }


def write_summary(results: Results) -> dict[str, Any]:
    """Make the summary of a folder of results, write it there, and return it."""
    summary = summarise(results)
    text = json.dumps(summary, indent=1, ensure_ascii=False, allow_nan=False)
    write_text(results.folder / SUMMARY, text + "\n")
    return summary


def numbers_of(summary: Mapping[str, Any], task: str, pipeline: str, test_on: str = "") -> dict[str, Any]:
    """Return the summarised metrics of a pipeline by its title; empty if it is not there."""
    wanted = (task, pipeline, test_on)
    rows = (row for row in summary["results"] if (row["task"], row["pipeline"], row["test_on"]) == wanted)
    return next((row["metrics"] for row in rows), {})


Complete = dict[tuple[str, str, str], list[UnitResult]]


def _complete(results: Results) -> Complete:
    """Return, by task, title and target, the units of pipelines that have all their repeats."""
    found: Complete = {}
    for each in sorted(results.units, key=lambda each: each.unit.repeat):
        found.setdefault((each.unit.task, each.unit.pipeline.title, each.unit.test_on), []).append(each)
    return {key: units for key, units in found.items() if len(units) == results.protocol["repeats"]}


def _missing(results: Results, complete: Complete) -> list[str]:
    wanted = len({(unit["task"], str(unit["pipeline"]), unit["test_on"]) for unit in results.protocol["units"]})
    return [f"{wanted - len(complete)} of {wanted} pipelines are not finished"] if wanted > len(complete) else []


def _summarise_task(
    task: str, target: str, own: dict[str, list[UnitResult]], metrics: dict[str, Metric], bootstrap: dict[str, Any]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    first = next(iter(own.values()))
    for title, units in own.items():
        if [unit.header["test"] for unit in units] != [unit.header["test"] for unit in first]:
            raise ArtifactError(
                f"{title} on {task} was tested on other cases than {first[0].header['title']}, but all must share "
                "them. Delete the units of this task and run the benchmark again."
            )
    draws = Draws([len(unit.rows) for unit in first], bootstrap["replicates"], bootstrap["seed"])
    level = bootstrap["level"]
    single = [name for name, metric in metrics.items() if not metric.pooled]
    values = {title: {name: [_column(unit, name) for unit in units] for name in single} for title, units in own.items()}
    pooled = {
        title: {name: [metric(unit.tables) for unit in units] for name, metric in metrics.items() if metric.pooled}
        for title, units in own.items()
    }
    series = {(title, name): column for title, columns in values.items() for name, column in columns.items()}
    estimates = estimate_all(series, draws, level)
    rows = []
    for title, units in own.items():
        numbers: dict[str, Any] = {name: asdict(estimates[title, name]) for name in single}
        numbers |= {name: asdict(over_repeats(column)) for name, column in pooled[title].items()}
        rows.append(
            {"task": task, "test_on": target, "pipeline": title, "metrics": numbers, "converged": _converged(units)}
        )
    pipelines = [units[0].unit.pipeline for units in own.values()]
    comparisons = compare(task, target, pipelines, values, pooled, metrics, draws, level)
    return rows, [comparison.to_plain() for comparison in comparisons]


def _column(unit: UnitResult, name: str) -> np.ndarray:
    return np.array([np.nan if number is None else number for number in unit.numbers(name)], float)


def _converged(units: Sequence[UnitResult]) -> bool:
    return all(unit.header["certificate"]["converged"] for unit in units)


def _task(results: Results, name: str, complete: Complete) -> dict[str, Any]:
    units = next(units for (task, _, target), units in complete.items() if (task, target) == (name, ""))
    plain = next(task for task in results.protocol["tasks"] if task["name"] == name)
    members = plain["members"] if isinstance(plain["members"], int) else len(plain["members"])
    return {
        "name": name,
        "members": members,
        "num_classes": units[0].header["num_classes"],
        "class_names": units[0].header["class_names"],
        "background": units[0].header["background"],
        "cases": results.protocol["cases"][name],
        "voxels": [sum(row["voxels"] for row in unit.rows) for unit in units],
        **{part: [len(unit.header[part]) for unit in units] for part in ("cal", "val", "test")},
        "offsets": _offsets(complete.get((name, OFFSETS, ""), [])),
    }


def _offsets(units: Sequence[UnitResult]) -> dict[str, float | None]:
    """Return the spread of the pooled logits' free energy of every case that was tested in some repeat."""
    found = {row["case"]: row["metrics"].get("free_energy_std") for unit in units for row in unit.rows}
    return {case_id: found[case_id] for case_id in sorted(found)}


def _pipeline(pipeline: Pipeline) -> dict[str, Any]:
    return {
        "pooling": pipeline.pooling,
        "calibrator": pipeline.calibrator,
        "latex": pipeline.latex,
        "translation_invariant": pipeline.translation_invariant,
        "preserves": pipeline.preserves,
        "pointwise": pipeline.make(2).pointwise,
    }


def _facts(metric: Metric) -> dict[str, Any]:
    return {"title": metric.title, "unit": metric.unit, "better": metric.better, "pooled": metric.pooled}
