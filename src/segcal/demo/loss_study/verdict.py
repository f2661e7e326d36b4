"""What the study says about the question whether a loss that calibrates still helps once a calibrator is fitted.

Every sentence is computed. A loss helps on a task where the 95 % interval of the paired difference from CE + Dice, both
calibrated alike, lies below zero; it harms where it lies above.
"""

import numpy as np

from segcal.demo.loss_study.plan import MAIN
from segcal.demo.loss_study.results import Key, Results
from segcal.demo.loss_study.tables import BASELINE, METRIC_TITLES, PIPELINES, TITLES

Counts = tuple[int, int, int]
STAGES = {"clean": "On the test cases", "corrupted": "Under corruption"}


def helped(results: Results, metric: str, stage: str, pipeline: str) -> Counts:
    """Return for how many pairs of loss and task the loss helps, makes no clear difference, and harms."""
    counts = [0, 0, 0]
    for task in results.tasks:
        for variant in MAIN:
            found = results.difference(Key(task, BASELINE), Key(task, variant), metric, stage, pipeline)
            if variant == BASELINE or found is None or found.low is None or found.high is None:
                continue
            counts[0 if found.high < 0 else 2 if found.low > 0 else 1] += 1
    return counts[0], counts[1], counts[2]


def best_pair(results: Results, metric: str, stage: str, task: str) -> tuple[str, str, float] | None:
    """Return the loss and the calibration with the lowest mean, and that mean."""
    found = [
        (value, variant, pipeline)
        for variant in MAIN
        for pipeline in PIPELINES
        if (value := results.mean(Key(task, variant), metric, stage, pipeline)) is not None
    ]
    if not found:
        return None
    value, variant, pipeline = min(found)
    return variant, pipeline, value


def spread(results: Results, metric: str, stage: str, pipeline: str, task: str) -> float | None:
    """Return how far the means of the losses lie apart, all calibrated alike."""
    means = [results.mean(Key(task, variant), metric, stage, pipeline) for variant in MAIN]
    found = [mean for mean in means if mean is not None]
    return max(found) - min(found) if found else None


def unchanged(results: Results, pipeline: str) -> tuple[int, int]:
    """Return how many networks a calibration left as they were, on every test case, and how many it was fitted to."""
    columns = [
        (results.column(key, "nll", seeds=[seed]), results.column(key, "nll", pipeline=pipeline, seeds=[seed]))
        for key in (Key(task, variant) for task in results.tasks for variant in MAIN)
        for seed in results.seeds(key)
    ]
    fitted = [(before[0], after[0]) for before, after in columns if after]
    return sum(bool(np.allclose(before, after, rtol=1e-5)) for before, after in fitted), len(fitted)


def verdict(results: Results, metric: str = "nll") -> str:
    """Return the paragraph."""
    sentences = []
    for stage, words in STAGES.items():
        counts = {pipeline: helped(results, metric, stage, pipeline) for pipeline in PIPELINES}
        if not sum(counts["none"]):
            continue
        sentences.append(_counted(words, metric, counts))
        sentences += [
            _spread(results, metric, stage, task) for task in results.tasks if _has(results, metric, stage, task)
        ]
        sentences += [
            _best(results, metric, stage, task) for task in results.tasks if _has(results, metric, stage, task)
        ]
    return " ".join(sentences)


def _counted(words: str, metric: str, counts: dict[str, Counts]) -> str:
    total = sum(counts["none"])
    before = f"{words}, without calibration after training, a loss has a lower {METRIC_TITLES[metric]} than CE + Dice"
    parts = [
        f"{before} in {counts['none'][0]} of {total} pairs of loss and task and a higher one in {counts['none'][2]}"
    ]
    parts += [
        f"with {pipeline} after both, lower in {counts[pipeline][0]} and higher in {counts[pipeline][2]}"
        for pipeline in PIPELINES[1:]
        if sum(counts[pipeline])
    ]
    return "; ".join(parts) + "."


def _spread(results: Results, metric: str, stage: str, task: str) -> str:
    found = {pipeline: spread(results, metric, stage, pipeline, task) for pipeline in PIPELINES}
    parts = [f"{value:.4f} with {pipeline}" for pipeline, value in found.items() if value is not None]
    listed = ", ".join(parts).replace("with none", "without calibration")
    return f"The losses lie apart by {listed} on {task}."


def _best(results: Results, metric: str, stage: str, task: str) -> str:
    pair = best_pair(results, metric, stage, task)
    assert pair is not None
    variant, pipeline, value = pair
    after = "without calibration" if pipeline == "none" else f"with {pipeline} after it"
    base = results.mean(Key(task, BASELINE), metric, stage, pipeline)
    same = "" if base is None or variant == BASELINE else f" (CE + Dice: {base:.4f})"
    return f"The lowest value on {task} is that of {TITLES[variant]} {after}, {value:.4f}{same}."


def _has(results: Results, metric: str, stage: str, task: str) -> bool:
    return best_pair(results, metric, stage, task) is not None
