"""The rows and the pictures of the study on embedded tasks, all computed from its lines."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from paper.board import Row, counted, rows_of_table, write_rows
from paper.loss_study import tables
from paper.loss_study.figures import write_figures
from paper.loss_study.plan import MAIN, SENSITIVITY, SIGMAS
from paper.loss_study.results import Results
from paper.loss_study.rows import read_lines
from paper.loss_study.verdict import STAGES, Counts, calibrated, compared, spread_table, unchanged
from paper.loss_study.verdict import counted as verdict_counts

NAME = "losses"
IMAGES = "images"
METRICS = {"nll": "NLL", "ece": "ECE (all)"}
# What the columns of ECE and CECE are without more words: of the true foreground.
FOREGROUND = {"ECE": "ECE (foreground)", "CECE": "CECE (foreground)"}


def write_study(sources: Sequence[Path], folder: Path) -> Path:
    """Write the rows and the figures of a study into a folder, and return the path of the rows.

    Args:
        sources: lines of the study, each with its pictures beside it.
        folder: where to.
    """
    results = Results(read_lines(sources)[0])
    write_figures(results, sources, folder / IMAGES)
    return write_rows(NAME, rows(results), folder)


def write_docs(sources: Sequence[Path], docs: Path) -> None:
    """Write the rows of the board and the pictures of docs/losses.md again."""
    results = Results(read_lines(sources)[0])
    write_figures(results, sources, docs / IMAGES / NAME)
    write_rows(NAME, rows(results), docs / "board")


def rows(results: Results) -> Iterator[Row]:
    """Yield every number of the study."""
    yield from facts(results)
    for row in (*_main(results), *_others(results)):
        metric = FOREGROUND.get(row.metric, row.metric)
        yield Row(row.task, row.method, metric, row.value, row.low, row.high, note=row.note)


def facts(results: Results) -> Iterator[Row]:
    """Yield what was trained, and which calibrations changed nothing."""
    yield from counted("all tasks", "the study", {"networks": sum(len(own) for own in results.rows.values())})
    seeds = {len(own) for own in results.rows.values()}
    yield from counted("all tasks", "the study", {"seeds, fewest": min(seeds), "seeds, most": max(seeds)})
    for pipeline in tables.PIPELINES[1:]:
        same, fitted = unchanged(results, pipeline)
        yield from counted("all tasks", pipeline, {"networks fitted": fitted, "networks left as they were": same})


def _main(results: Results) -> Iterator[Row]:
    """Yield what rests on the networks of the main table."""
    for task in results.tasks:
        yield from rows_of_table(tables.main_table(results, task), task)
    if all(tables.Key(task, variant) in results.rows for task in results.tasks for variant in MAIN):
        yield from rows_of_table(tables.rank_table(results), "all tasks")
    for metric, title in METRICS.items():
        yield from _counts(results, metric, title)
        yield from rows_of_table(spread_table(results, metric), "all losses", f"{title}, {{}}", named=True)
        for stage in STAGES:
            for task in results.tasks:
                where = f"{task}, {stage}"
                yield from rows_of_table(tables.post_hoc_table(results, task, stage, metric), where, f"{title}, {{}}")
                gains = tables.gain_table(results, task, stage, metric)
                yield from rows_of_table(gains, where, f"{title} minus that of CE + Dice, {{}}")
    yield from (row for row in rows_of_table(tables.union_table(results)) if row.metric != "Dice")


def _counts(results: Results, metric: str, title: str) -> Iterator[Row]:
    """Yield how many pairs of loss and task differ clearly from CE + Dice, and in how many calibration changes them."""
    for stage in STAGES:
        for pipeline in tables.PIPELINES:
            against = verdict_counts(compared(results, metric, stage, pipeline))
            own = calibrated(results, metric, stage, pipeline) if pipeline != "none" else Counts()
            for what, found in ((f"{title} against CE + Dice", against), (f"{title} by calibration", own)):
                if sum(found):
                    named = {"clearly lower": found.better, "clearly higher": found.worse, "compared": sum(found)}
                    pairs = {f"{what}, pairs of loss and task {words}": count for words, count in named.items()}
                    yield from counted(f"all tasks, {stage}", pipeline, pairs)


def _others(results: Results) -> Iterator[Row]:
    """Yield what rests on networks beyond the main table, where there are any."""
    kinds = set(results.rows)
    variants = {key.variant for key in kinds if key[2:] == ("unet", 100)} - set(MAIN)
    if variants & set(tables.ABLATION):
        yield from rows_of_table(tables.ablation_table(results), metric="{}, variants of NACL")
        gains = tables.ablation_gain_table(results)
        yield from rows_of_table(gains, metric=f"{{}} minus that of {next(iter(tables.ABLATION.values()))}")
    if variants & {variant for pair in SIGMAS.values() for variant in pair}:
        yield from rows_of_table(tables.sigma_table(results), metric="{} by which NACL is better than SVLS")
    if variants & {variant for three in SENSITIVITY.values() for variant in three}:
        yield from rows_of_table(tables.sensitivity_table(results), metric="{}, settings", named=True)
    if any(key.backbone != "unet" for key in kinds):
        yield from rows_of_table(tables.backbone_table(results), "streets", "{}, backbones", named=True)
    if any(key.share != 100 for key in kinds):
        for metric, title in (("dice", "Dice"), ("ece_foreground", "ECE (foreground)")):
            yield from rows_of_table(tables.share_table(results, metric), metric=f"{title}, {{}} of the training data")
