"""Figures and tables of the study of losses, from its archives: the generated parts of docs/losses.md.

    python benchmarks/loss_figures.py losses.zip [more.zip] --docs docs

writes pictures to docs/images/losses and replaces what stands between the marks of docs/losses.md. Needs matplotlib.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import matplotlib
import numpy as np

from segcal.demo.loss_study import tables
from segcal.demo.loss_study.network import LOGIT_EDGES
from segcal.demo.loss_study.plan import MAIN, SENSITIVITY, SHARE_TASKS, SHARES, Unit
from segcal.demo.loss_study.results import Key, Results
from segcal.demo.loss_study.rows import read_arrays, read_rows
from segcal.demo.loss_study.verdict import unchanged, verdict
from segcal.demo.tasks import get_task

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.colors import ListedColormap

BLUE, BROWN = "#0072B2", "#8C510A"
COLOURS = dict(zip(MAIN, plt.get_cmap("tab10").colors, strict=False))
MARKERS = dict(zip(MAIN, "osv^D*PX", strict=True))


def radar(results: Results) -> plt.Figure:
    """Draw Fig. 1: Dice and ECE of every loss, a task a panel."""
    figure, axes = plt.subplots(
        1, len(results.tasks), figsize=(11, 3.8), subplot_kw={"projection": "polar"}, layout="constrained"
    )
    angles = np.linspace(0, 2 * np.pi, len(MAIN), endpoint=False)
    for axis, task in zip(np.atleast_1d(axes), results.tasks, strict=True):
        for metric, colour, name in (("dice", BLUE, "Dice"), ("ece_foreground", BROWN, "ECE")):
            values = [results.mean(Key(task, variant), metric) or np.nan for variant in MAIN]
            axis.plot([*angles, angles[0]], [*values, values[0]], color=colour, label=name)
        axis.set_xticks(angles, [tables.TITLES[variant] for variant in MAIN], fontsize=7)
        axis.tick_params(axis="y", labelsize=6)
        axis.set_title(task)
    np.atleast_1d(axes)[0].legend(loc="lower left", bbox_to_anchor=(-0.3, -0.15), fontsize=8)
    return figure


def scatter(results: Results) -> plt.Figure:
    """Draw Fig. 10: Dice against ECE on the union of true and predicted foreground."""
    figure, axes = plt.subplots(1, len(results.tasks), figsize=(11, 3.2), layout="constrained")
    for axis, task in zip(np.atleast_1d(axes), results.tasks, strict=True):
        for variant in MAIN:
            place = [results.mean(Key(task, variant), metric) for metric in ("dice", "ece_union")]
            axis.scatter(
                *[[value] for value in place],
                color=COLOURS[variant],
                marker=MARKERS[variant],
                label=tables.TITLES[variant],
                s=45,
            )
        axis.set(title=task, xlabel="Dice", ylabel="ECE, union")
    np.atleast_1d(axes)[-1].legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def sensitivity(results: Results) -> plt.Figure:
    """Draw Fig. 6: Dice and ECE at three settings of every loss."""
    figure, axes = plt.subplots(
        2, len(results.tasks), figsize=(11, 4.6), sharex=True, squeeze=False, layout="constrained"
    )
    for column, task in enumerate(results.tasks):
        for row, metric in enumerate(("dice", "ece_foreground")):
            for loss, variants in SENSITIVITY.items():
                seeds = results.common(Key(task, variant) for variant in variants)
                values = [results.mean(Key(task, variant), metric, seeds=seeds) for variant in variants]
                shown = [np.nan if value is None else value for value in values]
                axes[row, column].plot(shown, color=COLOURS[loss], marker=MARKERS[loss], label=tables.TITLES[loss])
            axes[row, column].set_ylabel(tables.METRIC_TITLES[metric])
        axes[0, column].set_title(task)
        axes[1, column].set_xticks(range(3), ["HP1", "HP2", "HP3"])
    axes[0, -1].legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def shares(results: Results) -> plt.Figure:
    """Draw Fig. 9: Dice and ECE with less training data."""
    tasks = [task for task in SHARE_TASKS if task in results.tasks]
    figure, axes = plt.subplots(2, len(tasks), figsize=(8, 4.6), sharex=True, squeeze=False, layout="constrained")
    for column, task in enumerate(tasks):
        for row, metric in enumerate(("dice", "ece_foreground")):
            for variant in MAIN:
                keys = [Key(task, variant, share=share) for share in (*SHARES, 100)]
                values = [results.mean(key, metric, seeds=results.common(keys)) for key in keys]
                shown = [np.nan if value is None else value for value in values]
                axes[row, column].plot(
                    (*SHARES, 100), shown, color=COLOURS[variant], marker=MARKERS[variant], label=tables.TITLES[variant]
                )
            axes[row, column].set_ylabel(tables.METRIC_TITLES[metric])
        axes[0, column].set_title(task)
        axes[1, column].set_xlabel("% of the training cases")
    axes[0, -1].legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def profiles(results: Results) -> plt.Figure:
    """Draw Fig. 4: the mean absolute logit of each class where each class is true."""
    figure, axes = plt.subplots(len(results.tasks), len(MAIN), figsize=(13, 4.6), squeeze=False, layout="constrained")
    for row, task in zip(axes, results.tasks, strict=True):
        found = {v: results.rows.get(Key(task, v), {}).get(0) for v in MAIN}
        maps = {v: np.array(own["logit_profile"], float) for v, own in found.items() if own}
        top = max((np.nanmax(values) for values in maps.values()), default=1.0)
        for axis, variant in zip(row, MAIN, strict=True):
            axis.set(xticks=[], yticks=[])
            if variant in maps:
                shown = axis.imshow(maps[variant], vmin=0, vmax=top, cmap="viridis")
                axis.set_title(tables.TITLES[variant], fontsize=8)
        figure.colorbar(shown, ax=row, shrink=0.8)
        row[0].set_ylabel(f"{task}\ntrue class", fontsize=8)
    return figure


def growth(results: Results) -> plt.Figure:
    """Draw Fig. 5: the largest logit in the course of training."""
    figure, axes = plt.subplots(
        len(results.tasks), len(MAIN), figsize=(13, 5), sharex=True, squeeze=False, layout="constrained"
    )
    middle = (LOGIT_EDGES[1:] + LOGIT_EDGES[:-1]) / 2
    for row, task in zip(axes, results.tasks, strict=True):
        for axis, variant in zip(row, MAIN, strict=True):
            own = results.rows.get(Key(task, variant), {}).get(0)
            histograms = sorted(
                (int(epoch), counts) for epoch, counts in (own or {}).get("logit_histograms", {}).items()
            )
            for number, (epoch, counts) in enumerate(histograms):
                colour = plt.get_cmap("viridis")(number / max(len(histograms) - 1, 1))
                axis.plot(middle, np.array(counts) / sum(counts), color=colour, label=f"epoch {epoch}", linewidth=1)
            axis.set(yticks=[], xlim=(-1, 8))
            axis.set_title(tables.TITLES[variant], fontsize=8)
        row[0].set_ylabel(task)
        row[-1].legend(fontsize=5)
    return figure


def pictures(results: Results, archives: list[Path], task: str) -> plt.Figure | None:
    """Draw Fig. 11: masks, confidence and reliability of one case."""
    shown = read_arrays(archives, f"{task}-shown")
    if shown is None:
        return None
    found = {v: read_arrays(archives, Unit(task, v, 0).name) for v in MAIN}
    figure, axes = plt.subplots(3, len(MAIN) + 1, figsize=(15, 4.6), layout="constrained")
    palette = ListedColormap(np.array(get_task(task).palette) / 255)
    image = shown["image"]
    axes[0, 0].imshow(np.moveaxis(image, 0, 2) if len(image) == 3 else image[-1], cmap="gray")
    axes[1, 0].imshow(
        np.ma.masked_less(shown["labels"], 0), cmap=palette, vmin=0, vmax=palette.N - 1, interpolation="nearest"
    )
    axes[0, 0].set_title("image", fontsize=8)
    axes[1, 0].set_title("truth", fontsize=8)
    for column, (variant, arrays) in enumerate(found.items(), start=1):
        if arrays is None:
            continue
        axes[0, column].imshow(arrays["prediction"], cmap=palette, vmin=0, vmax=palette.N - 1, interpolation="nearest")
        axes[1, column].imshow(arrays["confidence"] / 255, cmap="cividis", vmin=0.3, vmax=1)
        curve = results.rows[Key(task, variant)][0]["shown_curve"]
        count, right, confidence = (np.array(curve[key]) for key in ("count", "right", "confidence"))
        used = count >= 20
        axes[2, column].plot([0, 1], [0, 1], color="grey", linewidth=0.8)
        axes[2, column].plot(confidence[used] / count[used], right[used] / count[used], "o-", color=BLUE, markersize=3)
        axes[2, column].set(xlim=(0, 1), ylim=(0, 1), xticks=[0, 1], yticks=[0, 1], aspect="equal")
        axes[0, column].set_title(tables.TITLES[variant], fontsize=8)
    for axis in [*axes[:2].flat, axes[2, 0]]:
        axis.axis("off")
    return figure


def post_hoc(results: Results) -> plt.Figure:
    """Draw the NLL of every loss without and with calibration after training."""
    stages = ("clean", "corrupted")
    figure, axes = plt.subplots(len(stages), len(results.tasks), figsize=(12, 5.4), squeeze=False, layout="constrained")
    for row, stage in zip(axes, stages, strict=True):
        for axis, task in zip(row, results.tasks, strict=True):
            for number, pipeline in enumerate(tables.PIPELINES):
                cells = [results.estimate(Key(task, variant), "nll", stage, pipeline) for variant in MAIN]
                places = [place + 0.2 * (number - 1.5) for place, cell in enumerate(cells) if cell]
                kept = [cell for cell in cells if cell]
                if kept:
                    spread = [[c.value - c.low for c in kept], [c.high - c.value for c in kept]]
                    axis.errorbar(
                        places, [c.value for c in kept], spread, fmt="o", markersize=3, linewidth=1, label=pipeline
                    )
            axis.set_title(f"{task}, {stage}", fontsize=9)
            axis.set_xticks(range(len(MAIN)), [tables.TITLES[v] for v in MAIN], rotation=40, ha="right", fontsize=7)
            if not axis.has_data():
                axis.set_visible(False)
        row[0].set_ylabel("NLL")
    axes[0, -1].legend(fontsize=7)
    return figure


def make_figures(results: Results, archives: list[Path]) -> dict[str, plt.Figure | None]:
    found: dict[str, Callable[[Results], plt.Figure]] = {
        "radar": radar,
        "union": scatter,
        "sensitivity": sensitivity,
        "shares": shares,
        "logit_profiles": profiles,
        "logit_growth": growth,
        "post_hoc": post_hoc,
    }
    made = {name: draw(results) for name, draw in found.items()}
    return made | {f"case_{task}": pictures(results, archives, task) for task in results.tasks}


def make_texts(results: Results) -> dict[str, str]:
    """Return the generated parts of the page, by the name of their mark."""
    made = {"facts": facts_text(results)}
    made |= {f"main_{task}": tables.main_table(results, task).to_markdown() for task in results.tasks}
    made |= {
        "ranks": tables.rank_table(results).to_markdown(),
        "sensitivity": tables.sensitivity_table(results).to_markdown(),
        "ablation": tables.ablation_table(results).to_markdown(),
        "sigma": tables.sigma_table(results).to_markdown(),
        "backbones": tables.backbone_table(results).to_markdown(),
        "shares": "\n".join(tables.share_table(results, metric).to_markdown() for metric in ("dice", "ece_foreground")),
        "union": tables.union_table(results).to_markdown(),
        "verdict": "\n\n".join(verdict(results, metric) for metric in ("nll", "ece")),
    }
    for stage in ("clean", "corrupted"):
        chosen = [task for task in results.tasks if stage == "clean" or task != "tumour"]
        for metric in ("nll", "ece"):
            made[f"post_hoc_{stage}_{metric}"] = "\n".join(
                table(results, task, stage, metric).to_markdown()
                for task in chosen
                for table in (tables.post_hoc_table, tables.gain_table)
            )
    return made


def facts_text(results: Results) -> str:
    """Return what was trained, and which calibrations changed nothing."""
    rows = [row for seeds in results.rows.values() for row in seeds.values()]
    main = [key for key in results.rows if key.variant in MAIN and key[2:] == ("unet", 100)]
    counts = sorted({len(results.rows[key]) for key in main})
    rest = sorted({len(results.rows[key]) for key in results.rows if key not in main}) or [0]
    text = (
        f"{len(rows)} networks were trained: those of the main table with {_span(counts)} seeds, the others with "
        f"{_span(rest)}. Intervals are 95 % and come from a bootstrap over seeds and cases; numbers without an "
        "interval are means, and a difference that rests on one seed is no evidence."
    )
    for pipeline in tables.PIPELINES[1:]:
        same, fitted = unchanged(results, pipeline)
        if same:
            text += f" {pipeline} left {same} of {fitted} networks as they were: its short fit found nothing better."
    return text


def _span(counts: list[int]) -> str:
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"


def replace_parts(page: str, parts: dict[str, str]) -> str:
    """Return the page with everything between marks replaced."""
    for name, text in parts.items():
        begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
        if begin in page:
            before, rest = page.split(begin, 1)
            page = f"{before}{begin}\n{text.strip()}\n{end}{rest.split(end, 1)[1]}"
    return page


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("archives", nargs="+", type=Path)
    parser.add_argument("--docs", type=Path, required=True)
    options = parser.parse_args()
    results = Results(read_rows(options.archives))
    folder = options.docs / "images" / "losses"
    folder.mkdir(parents=True, exist_ok=True)
    for name, figure in make_figures(results, options.archives).items():
        if figure is not None:
            figure.savefig(folder / f"{name}.png", dpi=75)
            plt.close(figure)
    page = options.docs / "losses.md"
    page.write_text(replace_parts(page.read_text(encoding="utf-8"), make_texts(results)), encoding="utf-8")


if __name__ == "__main__":
    main()
