"""The section of the page on calibrators that are not in the paper's table; its sentences are made from the numbers."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from segcal.report.paper_tables import task_table
from segcal.summary import Estimate, Summary, read_summary

FOLDER = "more"
POOLING = "(mean_logits)"
RANKED = {"nll": "NLL", "ece": "ECE", "ba_ece": "BA-ECE", "ace": "ACE"}
# Set beside the best, whether they are or not.
BESIDE = ("ts", "cms_ap", "lts_ti")
# By pipeline, the metrics of a task.
Rows = Mapping[str, Mapping[str, Estimate]]


def more(folder: Path, summaries: Mapping[str, Summary]) -> Iterator[str]:
    """Yield the section, if there are results for it."""
    if not (folder / FOLDER / "summary.json").is_file():
        return
    summary = read_summary(folder / FOLDER)
    yield "## More calibrators\n"
    yield "Calibrators that are not in the paper's table, on mean logits, beside none and temperature scaling."
    yield "The divisions are those of Table 4 above, so that its rows compare.\n"
    for task in summary.tasks:
        yield task_table(summary, task.name).to_markdown()
    yield from selectors(folder / FOLDER)
    yield "**What it says.** Table 4 and these tables together, mean logits alone:\n"
    for task in summary.tasks:
        sources = [summary, *([summaries[task.name]] if task.name in summaries else [])]
        yield from words(task.name, sources)
    yield ""


def words(task: str, sources: list[Summary]) -> Iterator[str]:
    """Yield what the rows of a task say: who is best of those that keep the mask, and what the smoothers cost."""
    rows: dict[str, Mapping[str, Estimate]] = {}
    keepers = set()
    for source in sources:
        rows |= {
            row.pipeline: row.metrics
            for row in source.results
            if (row.task, row.test_on) == (task, "") and row.pipeline.endswith(POOLING)
        }
        keepers |= {title for title, facts in source.pipelines.items() if facts.preserves}
    kept = {title: metrics for title, metrics in rows.items() if title in keepers}
    yield f"- {task}, of those that keep the mask: {'; '.join(_best(kept, metric) for metric in RANKED)}."
    yield from (f"- {task}: {text}." for text in _smoothers(rows))


def _best(rows: Rows, metric: str) -> str:
    best = min(rows, key=lambda title: rows[title][metric].value)
    beside = [f"{name}{POOLING}" for name in BESIDE if f"{name}{POOLING}" in rows and f"{name}{POOLING}" != best]
    others = ", ".join(f"`{_short(title)}` {_text(rows, title, metric)}" for title in beside)
    return f"lowest {RANKED[metric]} `{_short(best)}` {_text(rows, best, metric)} ({others})"


def _smoothers(rows: Rows) -> Iterator[str]:
    plain, none = f"ts{POOLING}", f"identity{POOLING}"
    for name in ("selective", "meta_cal", "meta_cal_large_t"):
        title = f"{name}{POOLING}"
        if {title, plain, none} <= set(rows):
            flips = rows[title]["flip_rate"].value if "flip_rate" in rows[title] else None
            yield (
                f"`{name}` has NLL {_text(rows, title, 'nll')} and ECE {_text(rows, title, 'ece')}, where `ts` has "
                f"{_text(rows, plain, 'nll')} and {_text(rows, plain, 'ece')}; Dice in % "
                f"{_percent(rows[title]['dice'])} after {_percent(rows[none]['dice'])}, labels changed "
                f"{0.0 if flips is None else 100 * flips:.1f} %"
            )


def selectors(folder: Path) -> Iterator[str]:
    """Yield how well the selectors of selective scaling find mispredictions, on validation voxels."""
    yield "**The selector of `selective`**, on the validation voxels of each repeat:\n"
    yield "| task | repeat | mispredicted | flagged | recall | precision | AUROC | T of flagged voxels |"
    yield "|---|---:|---:|---:|---:|---:|---:|---:|"
    for path in sorted(folder.glob("units/*/repeat_*/selective-*.jsonl")):
        with path.open(encoding="utf-8") as lines:
            details = json.loads(next(lines))["certificate"]["details"]
        found = details["selector"]
        precision = "—" if found["precision"] is None else f"{found['precision']:.2f}"
        yield (
            f"| {path.parts[-3]} | {int(path.parts[-2].split('_')[1]) + 1} | {found['mispredicted_share']:.1%} | "
            f"{found['flagged_share']:.1%} | {found['recall']:.2f} | {precision} | {found['auroc']:.3f} | "
            f"{details['temperature_wrong']:g} |"
        )
    yield ""


def _short(title: str) -> str:
    return title.removesuffix(POOLING)


def _text(rows: Rows, title: str, metric: str) -> str:
    return f"{rows[title][metric].value:.4f}"


def _percent(one: Estimate) -> str:
    return f"{100 * one.value:.1f}"
