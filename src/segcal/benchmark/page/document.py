"""From a folder of results to one document: everything that the report page shows, as plain data.

The document is what the page embeds and offers for download. Its keys are described in ``docs/report.md``.
"""

from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from segcal.benchmark.page.place import make_place
from segcal.benchmark.page.provenance import calibrator_facts, protocol_facts
from segcal.benchmark.page.words import METRIC_WORDS, PERCENT, POOLING_WORDS, calibrator_words
from segcal.benchmark.pipelines import Pipeline
from segcal.benchmark.results import Results, read_results
from segcal.benchmark.summaries import summarise
from segcal.documents import parse_json
from segcal.errors import ArtifactError, SegcalError
from segcal.report.page import SCHEMA

STUDIES = "studies"
BY_RULE = "on {count} validation cases that it was not fitted to, as segcal fit does"
BY_LOSS = "because it has the lowest loss on the validation voxels of those that keep the mask"
FIRST = ""


def make_document(folder: str | Path) -> dict[str, Any]:
    """Return the document of a folder of results."""
    try:
        return _document(read_results(folder))
    except SegcalError:  # says what is wrong already
        raise
    except (KeyError, TypeError, IndexError, ValueError, AttributeError) as error:
        raise ArtifactError(
            f"{folder} holds results that this segcal cannot read ({type(error).__name__}: {error}), but they must be "
            "as it writes them. Run the benchmark again."
        ) from None


def _document(results: Results) -> dict[str, Any]:
    summary = summarise(results)
    studies = read_studies(results.folder)
    tasks = [task["name"] for task in summary["tasks"]]
    chosen = {task: choose(results, summary, studies, task) for task in tasks}
    targets = dict.fromkeys((row["task"], row["test_on"]) for row in summary["results"])
    places = [make_place(results, summary, task, target, *chosen[task]) for task, target in targets]
    calibrators = {each["calibrator"] for each in summary["pipelines"].values()}
    return {
        "schema": SCHEMA,
        "kind": "benchmark",
        "title": ", ".join(tasks),
        "segcal": version("segcal"),
        "level": summary["bootstrap"]["level"],
        "notes": [*summary["notes"], *_reduced(results.folder)],
        "metrics": metric_facts(summary["metrics"]),
        "poolings": POOLING_WORDS,
        "calibrators": {name: {"title": calibrator_words(name), "about": _about(name)} for name in sorted(calibrators)},
        "places": places,
        "comparisons": [each["sentence"] for each in summary["comparisons"]],
        "examples": {task: _examples(studies, task) for task in tasks},
        "rule": studies.get("worst_cases", {}).get("rule", ""),
        "provenance": protocol_facts(results)
        | {"calibrators": {task: calibrator_facts(results, task, chosen[task][0]) for task in tasks}},
    }


def read_studies(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the studies of a folder of results, by name; those that cannot be read are refused."""
    found = {}
    for path in sorted((folder / STUDIES).glob("*.json")):
        try:
            document = parse_json(path.read_text("utf-8"))
            found[document["study"]] = document
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ArtifactError(
                f"{path} is not readable ({error}), but it must be as segcal wrote it. Delete it and run the "
                "benchmark again."
            ) from None
    return found


def choose(results: Results, summary: Mapping[str, Any], studies: Mapping[str, Any], task: str) -> tuple[Pipeline, str]:
    """Return the pipeline that the verdict on a task is about, and how it was chosen, in words.

    The study of the worst cases has chosen one by the rule of `segcal fit`. Without it, the pipeline of lowest
    validation loss among those that keep the mask and do not see the offset is taken.
    """
    complete = [row["pipeline"] for row in summary["results"] if (row["task"], row["test_on"]) == (task, "")]
    units = {title: results.repeats(task, title)[0] for title in complete}
    known = studies.get("worst_cases", {}).get("tasks", {}).get(task)
    if known is not None and known["chosen"]["title"] in units:
        count = len(units[known["chosen"]["title"]].header["val"])
        return Pipeline.from_plain(known["chosen"]), BY_RULE.format(count=count) if count else FIRST
    pipelines = [unit.unit.pipeline for unit in units.values()]
    pooled = [each for each in pipelines if each.pooling == "mean_logits"] or pipelines
    safe = [each for each in pooled if each.translation_invariant and each.preserves and each.calibrator != "identity"]
    losses = {each: units[each.title].header["certificate"].get("validation_nll") for each in safe}
    scored = [each for each in safe if losses[each] is not None]
    if scored:
        return min(scored, key=lambda each: losses[each]), BY_LOSS
    return (safe or pooled)[0], FIRST


def metric_facts(metrics: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the words and the unit of each metric that is shown, in the order of the table's columns.

    Args:
        metrics: by name, at least `better` and `pooled`.
    """
    return {
        name: {
            "title": title,
            "explained": explained,
            "shown": shown,
            "percent": name in PERCENT,
            "better": metrics[name]["better"],
            "pooled": metrics[name]["pooled"],
            "name": name,
        }
        for name, (title, explained, shown) in METRIC_WORDS.items()
        if name in metrics
    }


def _reduced(folder: Path) -> list[str]:
    """Return what a demonstration did less of than everything, in one sentence."""
    path = folder / "verdict.json"
    if not path.is_file():
        return []
    try:
        reduced = parse_json(path.read_text("utf-8"))["reduced"]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return [f"This is a demonstration on drawn data, reduced to take minutes: {'; '.join(reduced)}."] if reduced else []


def _about(name: str) -> str:
    return (type(Pipeline("single", name).make(2)).__doc__ or "").strip().split("\n")[0]


def _examples(studies: Mapping[str, Any], task: str) -> dict[str, Any]:
    found = studies.get("worst_cases", {}).get("tasks", {}).get(task)
    if found is None:
        return {"cases": [], "of": 0, "pipeline": "", "temperature": None}
    kept = {key: found.get(key) for key in ("cases", "of", "temperature")}
    return kept | {"pipeline": found["chosen"]["title"]}
