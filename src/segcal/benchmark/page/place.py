"""Everything that the page shows of one place: a task, or another that its calibrators were tested on."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from segcal.benchmark.page.curves import band_rows, class_rows, pipeline_curves, shown_classes
from segcal.benchmark.page.verdict import Verdict, make_verdict
from segcal.benchmark.pipelines import Pipeline
from segcal.benchmark.results import Results, UnitResult
from segcal.studies.facts import find_facts
from segcal.statistics.additive import total_of

# Of so many test cases the numbers before and after are kept, one by one.
MOST_CASES = 200
CASE_METRICS = ("dice", "ece", "nll")


def make_place(
    results: Results, summary: Mapping[str, Any], task: str, test_on: str, chosen: Pipeline, why: str
) -> dict[str, Any]:
    """Return a place as plain data.

    Args:
        results: the units.
        summary: made from them.
        task: where calibrators were fitted.
        test_on: where they were tested; "" for the task itself.
        chosen: the pipeline that the verdict is about.
        why: how it was chosen, in words.
    """
    rows = [row for row in summary["results"] if (row["task"], row["test_on"]) == (task, test_on)]
    units = {row["pipeline"]: results.repeats(task, row["pipeline"], test_on) for row in rows}
    tables = {title: total_of({str(u.unit.repeat): u.tables for u in own}) for title, own in units.items()}
    first = next(iter(units.values()))[0].header
    classes = shown_classes(next(iter(tables.values())))
    baseline = Pipeline(chosen.pooling, "identity").title
    level = summary["bootstrap"]["level"]
    verdict = _verdict(results, summary, task, test_on, chosen, why) if {baseline, chosen.title} <= set(units) else None
    return {
        "id": f"{task}→{test_on}" if test_on else task,
        "task": task,
        "test_on": test_on,
        "classes": _class_names(first),
        "shown_classes": classes,
        "background": first["background"],
        "baseline": baseline if baseline in units else None,
        "chosen": chosen.title if chosen.title in units else None,
        "verdict": None if verdict is None else asdict(verdict),
        "division": _division(next(iter(units.values()))),
        "rows": [_row(row, units[row["pipeline"]], summary) for row in rows],
        "curves": {title: pipeline_curves(own, level, classes) for title, own in units.items()},
        "per_class": {title: class_rows(own) for title, own in tables.items()},
        "bands": {title: band_rows(units[title], own) for title, own in tables.items()},
        "cases": case_numbers(units),
    }


def case_numbers(units: Mapping[str, Sequence[UnitResult]]) -> dict[str, Any]:
    """Return the numbers of every test case of the first repeat, by metric and pipeline, of many cases the first."""
    first = {title: own[0].rows[:MOST_CASES] for title, own in units.items()}
    names = [row["case"] for row in next(iter(first.values()))]
    metrics = {
        name: {
            title: [None if row["metrics"].get(name) is None else round(row["metrics"][name], 6) for row in rows]
            for title, rows in first.items()
        }
        for name in CASE_METRICS
    }
    return {"names": names, "of": len(next(iter(units.values()))[0].rows), **metrics}


def _verdict(
    results: Results, summary: Mapping[str, Any], task: str, test_on: str, chosen: Pipeline, why: str
) -> Verdict:
    facts = find_facts(results, summary, task, chosen, test_on)
    needed = {chosen.title, Pipeline(chosen.pooling, "identity").title}
    done: dict[str, set[str]] = {}
    for row in summary["results"]:
        if row["task"] == task and row["test_on"] and not test_on:
            done.setdefault(row["test_on"], set()).add(row["pipeline"])
    targets = [target for target, titles in done.items() if needed <= titles]
    others = [find_facts(results, summary, task, chosen, target) for target in targets]
    division = _division(results.repeats(task, chosen.title, test_on))
    return make_verdict(facts, division | {"level": summary["bootstrap"]["level"], "chosen": why}, others)


def _division(units: Sequence[UnitResult]) -> dict[str, int]:
    header = units[0].header
    return {part: len(header[part]) for part in ("cal", "val", "test")} | {"repeats": len(units)}


def _class_names(header: Mapping[str, Any]) -> list[str]:
    names = header["class_names"]
    return [f"class {number}" for number in range(header["num_classes"])] if names is None else list(names)


def _row(row: Mapping[str, Any], units: Sequence[UnitResult], summary: Mapping[str, Any]) -> dict[str, Any]:
    facts, header = summary["pipelines"][row["pipeline"]], units[0].header
    return {
        "pipeline": row["pipeline"],
        "pooling": facts["pooling"],
        "calibrator": facts["calibrator"],
        "translation_invariant": facts["translation_invariant"],
        "preserves": facts["preserves"],
        "parameters": header["parameters"],
        "identifiable": header["identifiable"],
        "converged": row["converged"],
        "metrics": {name: _short(one) for name, one in row["metrics"].items()},
    }


def _short(one: Mapping[str, Any]) -> dict[str, Any]:
    """Return an estimate with six significant digits: what is shown has three."""
    kept = {name: None if one[name] is None else float(f"{one[name]:.6g}") for name in ("value", "low", "high")}
    return kept | {"undefined": one.get("undefined", 0)}
