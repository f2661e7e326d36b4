"""The tables of the study. Every one is made from what is there; a network that was not trained is a dash."""

from collections.abc import Iterable, Sequence

from paper.loss_study.backbones import BACKBONES
from paper.loss_study.plan import (
    BACKBONE_LOSSES,
    BACKBONE_TASK,
    MAIN,
    POST_HOC,
    SENSITIVITY,
    SHARE_TASKS,
    SHARES,
    SIGMAS,
    VARIANTS,
)
from paper.loss_study.results import DIRECTIONS, Key, Results
from segcal.report.table import Cell, Column, Group, Row, Table
from segcal.summary import Difference

TITLES = {
    "ce": "CE",
    "ce_dice": "CE + Dice",
    "focal": "focal",
    "ecp": "ECP",
    "label_smoothing": "label smoothing",
    "svls": "SVLS",
    "mbls": "MbLS",
    "nacl": "NACL",
}
METRIC_TITLES = {
    "dice": "Dice",
    "hd95": "HD95",
    "ece_foreground": "ECE",
    "cece_foreground": "CECE",
    "ece_union": "ECE (union)",
    "cece_union": "CECE (union)",
    "nll": "NLL",
    "ece": "ECE (all)",
}
DIGITS = {"hd95": 1}
PIPELINES = ("none", *POST_HOC)
BASELINE = "ce_dice"
# Variants of NACL, the one that others are compared with first.
ABLATION = {
    "nacl": "mean prior, L1, on logits",
    "nacl_gaussian_1": "gaussian prior (sigma 1)",
    "nacl_l2": "L2 penalty",
    "nacl_softmax": "on softmax",
}


def column(metric: str, span: str = "", bold: bool = True) -> Column:
    """Return the column of a metric."""
    better = ("higher" if metric == "dice" else "lower") if bold else None
    return Column(METRIC_TITLES[metric], span, DIGITS.get(metric, 3), better=better)  # type: ignore[arg-type]


def main_table(results: Results, task: str) -> Table:
    """Return Tables 1 and 2 for one task."""
    metrics = ("dice", "hd95", "ece_foreground", "cece_foreground", "nll")
    rows = tuple(Row(TITLES[v], tuple(results.cell(Key(task, v), m) for m in metrics)) for v in MAIN)
    seeds = max((len(results.seeds(Key(task, v))) for v in MAIN), default=0)
    note = f"{seeds} {'seed' if seeds == 1 else 'seeds'}; mean [95 % interval, bootstrap over seeds and cases]."
    return Table(
        f"{task}: segmentation and calibration", "Loss", tuple(map(column, metrics)), (Group("", rows),), (note,)
    )


def rank_table(results: Results) -> Table:
    """Return Fig. 2: sum-rank and mean-case-rank."""
    columns = tuple(
        Column(title, how, digits, better="lower")
        for how, digits in (("sum-rank", 1), ("mean case rank", 2))
        for title in (*(METRIC_TITLES[metric] for metric in DIRECTIONS), "all")
    )
    sums, cases = results.sum_ranks(), results.case_ranks()
    rows = []
    for variant in MAIN:
        first, second = list(sums[variant].values()), list(cases[variant].values())
        numbers = [*first, sum(first), *second, sum(second) / len(second)]
        rows.append(Row(TITLES[variant], tuple(Cell(number) for number in numbers)))
    return Table("Ranks over all tasks", "Loss", columns, (Group("", tuple(rows)),), ("1 is the best rank.",))


def setting(variant: str) -> str:
    """Return the option of a loss that is varied in Fig. 6, with its value.

    >>> setting("focal"), setting("mbls_3")
    ('gamma 3', 'margin 3')
    """
    name, value = next(iter(VARIANTS[variant][1].items()))
    return f"{name} {value:g}"


def sensitivity_table(results: Results) -> Table:
    """Return Fig. 6: three settings of every loss."""
    metrics = ("dice", "ece_foreground")
    every = [variant for variants in SENSITIVITY.values() for variant in variants]
    groups = tuple(
        Group(TITLES[loss], tuple(Row(setting(v), _means(results, v, metrics, every)) for v in variants))
        for loss, variants in SENSITIVITY.items()
    )
    notes = (_seed_note(results, every),)
    return Table("Sensitivity to hyper-parameters", "Setting", _by_task(results, metrics), groups, notes)


def ablation_table(results: Results) -> Table:
    """Return Tables 3 and 4 and Fig. 3: prior, penalty, and what the penalty is on."""
    metrics = ("dice", "ece_foreground", "cece_foreground")
    rows = tuple(Row(title, _means(results, v, metrics, ABLATION)) for v, title in ABLATION.items())
    notes = (_seed_note(results, ABLATION),)
    return Table("Variants of NACL", "NACL with", _by_task(results, metrics), (Group("", rows),), notes)


def ablation_gain_table(results: Results) -> Table:
    """Return the paired difference that each change of NACL makes."""
    metrics = ("dice", "ece_foreground")
    first, *others = ABLATION
    rows = tuple(
        Row(
            ABLATION[variant],
            tuple(
                _difference_cell(results.difference(Key(task, first), Key(task, variant), metric))
                for task in results.tasks
                for metric in metrics
            ),
        )
        for variant in others
    )
    columns = tuple(column(metric, task, bold=False) for task in results.tasks for metric in metrics)
    note = "Paired over seeds and cases, 95 % interval. Positive Dice and negative ECE: better."
    return Table(f"Minus {ABLATION[first]}", "NACL with", columns, (Group("", rows),), (note,))


def sigma_table(results: Results) -> Table:
    """Return Fig. 7: by how many percent NACL is better than SVLS with the same Gaussian."""
    metrics = ("dice", "ece_foreground")
    rows = []
    for sigma, (svls, nacl) in SIGMAS.items():
        cells = []
        for task in results.tasks:
            for metric in metrics:
                keys = Key(task, svls), Key(task, nacl)
                old, new = (results.mean(key, metric, seeds=results.seeds(*keys)) for key in keys)
                sign = 1 if metric == "dice" else -1
                cells.append(Cell(None if old is None or new is None else sign * 100 * (new - old) / old))
        rows.append(Row(f"sigma {sigma}", tuple(cells)))
    columns = tuple(Column(f"{METRIC_TITLES[m]} %", task, 1) for task in results.tasks for m in metrics)
    note = (
        "Percent by which NACL with the gaussian prior is better than SVLS with the same sigma, on the seeds that both "
        "have; negative: worse."
    )
    return Table("NACL against SVLS", "Gaussian", columns, (Group("", tuple(rows)),), (note,))


def backbone_table(results: Results) -> Table:
    """Return Fig. 8: other networks."""
    metrics = ("dice", "ece_foreground", "cece_foreground")
    seeds = results.common(Key(BACKBONE_TASK, v, backbone) for v in BACKBONE_LOSSES for backbone in BACKBONES)
    groups = tuple(
        Group(
            backbone,
            tuple(
                Row(TITLES[v], tuple(results.cell(Key(BACKBONE_TASK, v, backbone), m, seeds=seeds) for m in metrics))
                for v in BACKBONE_LOSSES
            ),
        )
        for backbone in BACKBONES
    )
    return Table(f"Backbones, on {BACKBONE_TASK}", "Loss", tuple(column(m, bold=False) for m in metrics), groups)


def share_table(results: Results, metric: str) -> Table:
    """Return Fig. 9: less training data."""
    tasks = [task for task in SHARE_TASKS if task in results.tasks]
    shares = (*SHARES, 100)
    seeds = results.common(Key(task, v, share=share) for task in tasks for share in shares for v in MAIN)
    rows = tuple(
        Row(
            TITLES[v],
            tuple(Cell(results.mean(Key(task, v, share=s), metric, seeds=seeds)) for task in tasks for s in shares),
        )
        for v in MAIN
    )
    columns = tuple(Column(f"{share} %", task, 3, better=column(metric).better) for task in tasks for share in shares)
    return Table(f"{METRIC_TITLES[metric]} with less training data", "Loss", columns, (Group("", rows),))


def union_table(results: Results) -> Table:
    """Return Fig. 10: calibration where truth or prediction is foreground."""
    metrics = ("dice", "ece_union", "cece_union")
    rows = tuple(Row(TITLES[v], _means(results, v, metrics)) for v in MAIN)
    return Table(
        "On the union of true and predicted foreground", "Loss", _by_task(results, metrics), (Group("", rows),)
    )


def post_hoc_table(results: Results, task: str, stage: str, metric: str) -> Table:
    """Return a metric of every loss before and after each calibration."""
    columns = tuple(Column(name, better="lower") for name in PIPELINES)
    rows = tuple(Row(TITLES[v], tuple(results.cell(Key(task, v), metric, stage, p) for p in PIPELINES)) for v in MAIN)
    title = f"{task}, {stage}: {METRIC_TITLES[metric]} without and with calibration after training"
    return Table(title, "Loss", columns, (Group("", rows),))


def gain_table(results: Results, task: str, stage: str, metric: str) -> Table:
    """Return the paired difference of every loss from CE + Dice, each after the same calibration."""
    rows = []
    for variant in MAIN:
        if variant == BASELINE:
            continue
        keys = Key(task, BASELINE), Key(task, variant)
        found = [results.difference(*keys, metric, stage, pipeline) for pipeline in PIPELINES]
        rows.append(Row(TITLES[variant], tuple(map(_difference_cell, found))))
    title = f"{task}, {stage}: {METRIC_TITLES[metric]} minus that of CE + Dice, both calibrated alike"
    note = "Negative: the loss still helps. Paired over seeds and cases, 95 % interval."
    columns = tuple(Column(name, digits=4) for name in PIPELINES)
    return Table(title, "Loss", columns, (Group("", tuple(rows)),), (note,))


def _difference_cell(found: Difference | None) -> Cell:
    return Cell(None) if found is None else Cell(found.value, found.low, found.high)


def _by_task(results: Results, metrics: Sequence[str]) -> tuple[Column, ...]:
    return tuple(column(metric, task) for task in results.tasks for metric in metrics)


def _seeds(results: Results, variants: Iterable[str]) -> list[int]:
    return results.common(Key(task, variant) for task in results.tasks for variant in variants)


def _seed_note(results: Results, variants: Iterable[str]) -> str:
    count = len(_seeds(results, variants))
    return f"Means over the {count} {'seed' if count == 1 else 'seeds'} that all of these have."


def _means(results: Results, variant: str, metrics: Sequence[str], compared: Iterable[str] = MAIN) -> tuple[Cell, ...]:
    """Return means over the seeds that all that is compared has."""
    seeds = _seeds(results, compared)
    keys = [Key(task, variant) for task in results.tasks]
    return tuple(Cell(results.mean(key, metric, seeds=seeds)) for key in keys for metric in metrics)
