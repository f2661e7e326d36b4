"""The figures of the study, after those of the neighbour-aware paper. They need matplotlib."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from paper.loss_study import tables
from paper.loss_study.network import LOGIT_EDGES
from paper.loss_study.plan import MAIN, SENSITIVITY, SHARE_TASKS, SHARES, Unit
from paper.loss_study.results import Key, Results
from paper.loss_study.rows import read_picture
from segcal.atomic import written
from segcal.demo.tasks import get_task
from segcal.report.figures import COLOURS, CONFIDENCE_MAP, MARKERS, new_figure, styled

STYLES = {
    variant: {"color": colour, "marker": marker, "label": tables.TITLES[variant]}
    for variant, colour, marker in zip(MAIN, COLOURS, MARKERS, strict=True)
}
DICE_COLOUR, ERROR_COLOUR = COLOURS[1], COLOURS[0]
# Bins of a reliability diagram with fewer voxels than this are not drawn.
FEWEST = 20
DPI = 75


@styled()
def radar(results: Results) -> Any:
    """Return Fig. 1: Dice and ECE of every loss, one panel per task."""
    figure, axes = new_figure(1, len(results.tasks), 11, 3.8, subplot_kw={"projection": "polar"})
    angles = np.linspace(0, 2 * np.pi, len(MAIN), endpoint=False)
    for axis, task in zip(axes[0], results.tasks, strict=True):
        for metric, colour, name in (("dice", DICE_COLOUR, "Dice"), ("ece_foreground", ERROR_COLOUR, "ECE")):
            values = [_number(results.mean(Key(task, variant), metric)) for variant in MAIN]
            axis.plot([*angles, angles[0]], [*values, values[0]], color=colour, label=name)
        names = [tables.TITLES[variant].replace(" smoothing", "\nsmoothing") for variant in MAIN]
        axis.set_xticks(angles, names, fontsize=7)
        axis.tick_params(axis="y", labelsize=6)
        axis.tick_params(axis="x", pad=9)
        axis.set_title(task)
    axes[0, 0].legend(loc="lower left", bbox_to_anchor=(-0.3, -0.15))
    return figure


@styled()
def union(results: Results) -> Any:
    """Return Fig. 10: Dice against ECE on the union of true and predicted foreground."""
    figure, axes = new_figure(1, len(results.tasks), 11, 3.2)
    for axis, task in zip(axes[0], results.tasks, strict=True):
        for variant, style in STYLES.items():
            place = [[_number(results.mean(Key(task, variant), metric))] for metric in ("dice", "ece_union")]
            axis.scatter(*place, s=45, **style)
        axis.set(title=task, xlabel="Dice", ylabel="ECE, union")
    _legend(axes[0, -1])
    return figure


@styled()
def sensitivity(results: Results) -> Any:
    """Return Fig. 6: Dice and ECE at three settings of every loss."""
    lines = {
        task: {loss: [Key(task, variant) for variant in variants] for loss, variants in SENSITIVITY.items()}
        for task in results.tasks
    }
    figure, axes = _curves(results, lines, range(3))
    for axis in axes[1]:
        axis.set_xticks(range(3), ["HP1", "HP2", "HP3"])
    return figure


@styled()
def shares(results: Results) -> Any:
    """Return Fig. 9: Dice and ECE with less training data."""
    percent = (*SHARES, 100)
    lines = {
        task: {variant: [Key(task, variant, share=share) for share in percent] for variant in MAIN}
        for task in SHARE_TASKS
        if task in results.tasks
    }
    if not lines:
        return None
    figure, axes = _curves(results, lines, percent)
    for axis in axes[1]:
        axis.set_xlabel("% of the training cases")
    return figure


@styled()
def logit_profiles(results: Results) -> Any:
    """Return Fig. 4: the mean absolute logit of each class where each class is true."""
    figure, axes = new_figure(len(results.tasks), len(MAIN), 13, 4.6)
    for row, task in zip(axes, results.tasks, strict=True):
        maps = {v: np.array(own["logit_profile"], float) for v in MAIN if (own := _first(results, task, v))}
        top = max((np.nanmax(values) for values in maps.values()), default=1.0)
        shown = None
        for axis, variant in zip(row, MAIN, strict=True):
            axis.set(xticks=[], yticks=[])
            axis.grid(visible=False)
            if variant in maps:
                shown = axis.imshow(maps[variant], vmin=0, vmax=top, cmap="viridis")
                axis.set_title(tables.TITLES[variant], fontsize=8)
        if shown is not None:
            figure.colorbar(shown, ax=list(row), shrink=0.8)
        row[0].set_ylabel(f"{task}\ntrue class", fontsize=8)
    return figure


@styled()
def logit_growth(results: Results) -> Any:
    """Return Fig. 5: the largest logit in the course of training."""
    from matplotlib import colormaps

    figure, axes = new_figure(len(results.tasks), len(MAIN), 13, 5, sharex=True)
    middle = (LOGIT_EDGES[1:] + LOGIT_EDGES[:-1]) / 2
    for row, task in zip(axes, results.tasks, strict=True):
        for axis, variant in zip(row, MAIN, strict=True):
            own = max(results.rows.get(Key(task, variant), {}).values(), key=_watched, default={})
            histograms = sorted((int(epoch), counts) for epoch, counts in own.get("logit_histograms", {}).items())
            for number, (epoch, counts) in enumerate(histograms):
                colour = colormaps["viridis"](number / max(len(histograms) - 1, 1))
                axis.plot(middle, np.array(counts) / sum(counts), color=colour, label=f"epoch {epoch}", linewidth=1)
            axis.set(yticks=[], xlim=(-1, 12), xlabel="largest logit" if task == results.tasks[-1] else "")
            axis.set_title(tables.TITLES[variant], fontsize=8)
        row[0].set_ylabel(task)
        if row[-1].lines:
            row[-1].legend(fontsize=5)
    return figure


@styled()
def case_figure(results: Results, sources: Sequence[Path], task: str) -> Any:
    """Return Fig. 11: masks, confidence and reliability of one case, or None if no case was kept."""
    from matplotlib.colors import ListedColormap

    image, labels = (read_picture(sources, f"{task}-shown-{what}") for what in ("image", "labels"))
    if image is None or labels is None:
        return None
    palette = ListedColormap(np.array(list(get_task(task).palette.values())) / 255)
    classes = {"cmap": palette, "vmin": 0, "vmax": palette.N - 1}
    figure, axes = new_figure(3, len(MAIN) + 1, 15, 4.6)
    labels = labels.view(np.int8)
    ignored = labels < 0
    axes[0, 0].imshow(image, cmap="gray")
    axes[0, 0].set_title("image", fontsize=8)
    axes[1, 0].imshow(np.ma.masked_where(ignored, labels), **classes)
    axes[1, 0].set_title("truth", fontsize=8)
    for column, variant in enumerate(MAIN, start=1):
        unit, own = Unit(task, variant, 0).name, _first(results, task, variant)
        mask, confidence = (read_picture(sources, f"{unit}-{what}") for what in ("prediction", "confidence"))
        if mask is None or confidence is None or own is None:
            continue
        axes[0, column].imshow(np.ma.masked_where(ignored, mask), **classes)
        axes[0, column].set_title(tables.TITLES[variant], fontsize=8)
        seen = np.ma.masked_where(ignored, confidence / 255)
        axes[1, column].imshow(seen, cmap=CONFIDENCE_MAP, vmin=0.3, vmax=1)
        count, right, sure = (np.array(own["shown_curve"][key]) for key in ("count", "right", "confidence"))
        used = count >= FEWEST
        axes[2, column].plot([0, 1], [0, 1], color="grey", linewidth=0.8)
        axes[2, column].plot(sure[used] / count[used], right[used] / count[used], "o-", color=DICE_COLOUR, markersize=3)
        axes[2, column].set(xlim=(0, 1), ylim=(0, 1), xticks=[0, 1], yticks=[0, 1], aspect="equal")
    for axis in axes[:2].flat:
        axis.axis("off")
    axes[2, 1].set(xlabel="confidence", ylabel="accuracy")
    axes[2, 0].axis("off")
    axes[2, 0].text(
        0.5, 0.5, "from above:\nmask,\nconfidence\n(dark 0.3,\nbright 1),\nreliability", ha="center", va="center"
    )
    return figure


@styled()
def post_hoc(results: Results) -> Any:
    """Return the NLL of every loss without and with calibration after training."""
    stages = ("clean", "corrupted")
    figure, axes = new_figure(len(stages), len(results.tasks), 12, 5.4)
    for row, stage in zip(axes, stages, strict=True):
        for axis, task in zip(row, results.tasks, strict=True):
            for number, pipeline in enumerate(tables.PIPELINES):
                cells = [results.cell(Key(task, variant), "nll", stage, pipeline) for variant in MAIN]
                places = [place + 0.2 * (number - 1.5) for place in range(len(MAIN))]
                middle, low, high = (
                    np.array([_number(getattr(cell, name)) for cell in cells]) for name in ("value", "low", "high")
                )
                style = {"fmt": MARKERS[number], "color": COLOURS[number], "label": pipeline}
                axis.errorbar(places, middle, [middle - low, high - middle], markersize=3, linewidth=1, **style)
            axis.set_title(f"{task}, {stage}", fontsize=9)
            axis.set_xticks(range(len(MAIN)), [tables.TITLES[v] for v in MAIN], rotation=40, ha="right", fontsize=7)
        row[0].set_ylabel("NLL")
    axes[0, -1].legend(fontsize=7)
    return figure


FIGURES: dict[str, Callable[[Results], Any]] = {
    "radar": radar,
    "union": union,
    "sensitivity": sensitivity,
    "shares": shares,
    "logit_profiles": logit_profiles,
    "logit_growth": logit_growth,
    "post_hoc": post_hoc,
}


def write_figures(results: Results, sources: Sequence[Path], folder: Path) -> list[str]:
    """Write every figure for which there are networks as PNG, and return their names."""
    settings = {variant for three in SENSITIVITY.values() for variant in three} - set(MAIN)
    beyond = {
        "sensitivity": any(key.variant in settings for key in results.rows),
        "shares": any(key.share != 100 for key in results.rows),
    }
    made = {name: draw(results) for name, draw in FIGURES.items() if beyond.get(name, True)}
    made |= {f"case_{task}": case_figure(results, sources, task) for task in results.tasks}
    drawn = {name: figure for name, figure in made.items() if figure is not None}
    for name, figure in drawn.items():
        with written(folder / f"{name}.png") as beside:
            figure.savefig(beside, dpi=DPI)
    return list(drawn)


def _curves(results: Results, lines: dict[str, dict[str, list[Key]]], places: Sequence[int]) -> tuple[Any, Any]:
    """Draw Dice above ECE, one column per task: the means of some keys, on the seeds that these have in common."""
    figure, axes = new_figure(2, len(lines), 4 * len(lines), 4.6, sharex=True)
    for column, (task, curves) in enumerate(lines.items()):
        for row, metric in enumerate(("dice", "ece_foreground")):
            for loss, keys in curves.items():
                seeds = results.common(keys)
                values = [_number(results.mean(key, metric, seeds=seeds)) for key in keys]
                axes[row, column].plot(places, values, **STYLES[loss])
            axes[row, column].set_ylabel(tables.METRIC_TITLES[metric])
        axes[0, column].set_title(task)
    _legend(axes[0, -1])
    return figure, axes


def _legend(axis: Any) -> None:
    axis.legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))


def _first(results: Results, task: str, variant: str) -> Any:
    """Return the row of the first seed, or None if it was not trained."""
    return results.rows.get(Key(task, variant), {}).get(0)


def _watched(row: Mapping[str, Any]) -> int:
    """Return in how many epochs the logits of a network were looked at."""
    return len(row["logit_histograms"])


def _number(value: float | None) -> float:
    return np.nan if value is None else value
