"""Draw the figures of the guide: ``python docs/figures.py`` writes them to docs/images, in some seconds.

Two are read from the rows of the board, so that they cannot say anything else; two are of made-up voxels.
``python docs/figures.py demo-results`` reads what ``segcal demo`` wrote there, and makes of it the picture and the
table of the README.
"""

import csv
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import matplotlib
import numpy as np
import torch

matplotlib.use("svg")
import matplotlib.pyplot as plt

import segcal
from segcal.metrics.base import Needs
from segcal.report.document import TaskSection
from segcal.report.images import SliceMaps, decode_map
from segcal.studies.page import read_document

DOCS = Path(__file__).parent
TASKS = ("roads", "cardiac", "camvid")
COLOURS = {"roads": "#0072b2", "cardiac": "#d55e00", "camvid": "#009e73"}
NEUTRAL = "#777777"


def conic_rows() -> dict[str, dict[str, tuple[float, float, float]]]:
    """Return NLL and its interval of each pipeline of each task, from the board."""
    found: dict[str, dict[str, tuple[float, float, float]]] = {}
    for row in _rows("conic"):
        if row["metric"] == "NLL" and "against" not in row["method"]:
            numbers = (float(row["value"]), float(row["low"]), float(row["high"]))
            found.setdefault(row["task"], {})[row["method"]] = numbers
    return found


def worth_rows() -> dict[str, list[tuple[int, float, float]]]:
    """Return (cases, NLL of nothing, NLL of the default) of each task, from the board."""
    found: dict[tuple[str, int], dict[str, float]] = {}
    for row in _rows("default_before"):
        size = re.fullmatch(r"NLL, (\d+) cases", row["metric"])
        if size and row["method"] in ("nothing", "default") and "videos" not in row["task"]:
            found.setdefault((row["task"], int(size[1])), {})[row["method"]] = float(row["value"])
    lines: dict[str, list[tuple[int, float, float]]] = {}
    for (task, cases), nll in found.items():
        lines.setdefault(task.split(",")[0], []).append((cases, nll["nothing"], nll["default"]))
    return lines


def _rows(study: str) -> Iterator[dict[str, str]]:
    with (DOCS / "board" / f"{study}.csv").open(encoding="utf-8", newline="") as lines:
        yield from csv.DictReader(lines)


def draw_which() -> None:
    """Draw NLL with intervals of four pipelines per task."""
    rows = conic_rows()
    names = {f"{name}(mean_logits)": name for name in ("ts", "cms_ap", "conic")}
    names = {"identity(mean_logits)": "none"} | names
    figure, axes = plt.subplots(1, 3, figsize=(8, 2.6), layout="constrained")
    for axis, task in zip(axes, TASKS, strict=True):
        for place, name in enumerate(names):
            value, low, high = rows[task][name]
            axis.plot([low, high], [place, place], color=COLOURS[task], lw=2)
            axis.plot(value, place, "o", color=COLOURS[task])
        axis.set(title=task, xlabel="NLL", yticks=range(4), yticklabels=names.values(), ylim=(3.6, -0.6))
    _save(figure, "guide_which")


def draw_how_many() -> None:
    """Draw the NLL of the default relative to nothing by the number of calibration cases."""
    figure, axis = plt.subplots(figsize=(6, 3.2), layout="constrained")
    worth = worth_rows()
    counts = sorted({row[0] for rows in worth.values() for row in rows})
    for task, rows in worth.items():
        axis.plot(
            [row[0] for row in rows],
            [100 * (row[2] / row[1] - 1) for row in rows],
            "o-",
            color=COLOURS[task],
            label=task,
        )
    axis.axhline(0, color=NEUTRAL, lw=1, ls="--")
    axis.set(xscale="log", xlabel="calibration cases", ylabel="NLL beside no calibration, %")
    axis.set_xticks(counts, labels=map(str, counts))
    axis.minorticks_off()
    axis.legend(frameon=False)
    _save(figure, "guide_how_many")


def draw_metrics() -> None:
    """Draw a reliability diagram before and after a temperature, with the gaps that ECE adds up."""
    rng = np.random.default_rng(0)
    logits = 5 * rng.normal(size=(4, 3, 100, 100))
    labels = (logits / 2.5 + rng.gumbel(size=logits.shape)).argmax(1)
    calibrator = segcal.fit("ts", logits, labels).calibrator
    figure, axes = plt.subplots(1, 2, figsize=(7, 3.4), layout="constrained", sharey=True)
    before = torch.from_numpy(logits)
    for axis, scores, title in zip(axes, (before, calibrator(before)), ("before", "after `ts`"), strict=True):
        needs = Needs.of([segcal.METRICS["ece"].with_bins(15)])
        tables = [needs.count(z, torch.from_numpy(y)).tables for z, y in zip(scores, labels, strict=True)]
        curve = sum(tables[1:], tables[0]).reliability[15]["all"]
        filled = curve.count > 0
        sure, right = (part[filled] / curve.count[filled] for part in (curve.confidence, curve.right))
        axis.vlines(sure, right, sure, color=COLOURS["cardiac"], lw=5, alpha=0.4)
        axis.plot([0, 1], [0, 1], "--", color=NEUTRAL, lw=1)
        axis.plot(sure, right, "o-", color=COLOURS["roads"], ms=4)
        error = (curve.count[filled] * np.abs(sure - right)).sum() / curve.count.sum()
        axis.set(title=f"{title.replace('`', '')}: ECE {error:.3f}", xlabel="confidence", xlim=(0.3, 1), ylim=(0, 1))
    axes[0].set_ylabel("share of right voxels")
    _save(figure, "guide_metrics")


def draw_wrong() -> None:
    """Draw what calibrators answer for one voxel when a constant is added to its logits."""
    rng = np.random.default_rng(0)
    offset = 6 * rng.random((8, 1, 20, 24))
    logits = 4 * rng.normal(size=(8, 3, 20, 24)) + offset
    odds = logits / 3 + rng.gumbel(size=logits.shape)
    odds[:, :1] += offset / 3 - 1  # class 0 is more frequent where the offset is large, and matrix scaling learns it
    labels = odds.argmax(1)
    shifts = torch.linspace(-20, 20, 81, dtype=torch.float64)
    voxel = torch.tensor([2.0, 1.0, 0.0], dtype=torch.float64) + shifts[:, None]
    figure, axis = plt.subplots(figsize=(6, 3), layout="constrained")
    for name, colour in (("ms", COLOURS["cardiac"]), ("cms_ap", COLOURS["roads"])):
        answer = segcal.fit(name, logits, labels).calibrator(voxel).exp()[:, 0].detach()
        axis.plot(shifts, answer, color=colour, label=name, lw=2)
    axis.set(xlabel="constant added to the logits (2, 1, 0)", ylabel="probability of class 0", ylim=(0, 1))
    axis.legend(frameon=False)
    _save(figure, "guide_wrong")


def draw_confidence(results: Path, picture: Path = DOCS / "images" / "confidence.png", task: str = "tumour") -> None:
    """Draw the test case that calibration improved most, its confidence before and after, and the reliability."""
    document, _ = read_document(results)
    section = next(each for each in document.sections if each.task == task and not each.test_on)
    case = next(each for each in document.examples[task].cases if "most gain" in each.why)
    figure = confidence_figure(section, max(case.slices, key=lambda maps: (decode_map(maps.prediction) > 0).sum()))
    figure.savefig(picture, dpi=110, metadata={"Software": None})
    plt.close(figure)


def confidence_figure(section: TaskSection, maps: SliceMaps) -> plt.Figure:
    """Return the input with its errors, both maps of confidence on one scale, and both reliability curves."""
    assert maps.image is not None
    truth, mask = decode_map(maps.truth), decode_map(maps.prediction)
    counted, image = truth != 255, decode_map(maps.image)
    figure, axes = plt.subplots(1, 5, figsize=(10, 2.9), width_ratios=[1, 1, 1, 0.06, 1.1], layout="constrained")
    axes[0].imshow(image.transpose(1, 2, 0) if image.ndim == 3 else image, cmap="gray")
    axes[0].imshow(np.ma.masked_equal((mask != truth) & counted, False), cmap="autumn", interpolation="nearest")
    axes[0].set_title("input, errors in red")
    colours = matplotlib.colormaps["cividis"].with_extremes(bad="0.8")  # where nothing was predicted
    levels = matplotlib.colors.BoundaryNorm([0, 0.5, 0.7, 0.8, 0.9, 0.95, 0.99, 1], 256)  # as on the report page
    for axis, one, title in ((axes[1], maps.before, "confidence before"), (axes[2], maps.after, "after, same mask")):
        shown = axis.imshow(np.ma.masked_array(decode_map(one), ~counted), norm=levels, cmap=colours)
        axis.set_title(title)
    bar = figure.colorbar(shown, cax=axes[3])
    bar.set_ticks([0.5, 0.7, 0.8, 0.9, 0.95, 0.99], labels=["50 %", "70 %", "80 %", "90 %", "95 %", "99 %"])
    rows, columns = np.nonzero(counted & ((truth > 0) | (mask > 0)))
    centre, half = (
        ((rows.min() + rows.max()) / 2, (columns.min() + columns.max()) / 2),
        4 + max(np.ptp(rows), np.ptp(columns)) / 2,
    )
    for axis in axes[:3]:
        axis.set(xlim=(centre[1] - half, centre[1] + half), ylim=(centre[0] + half, centre[0] - half))
        axis.axis("off")
    axes[4].plot([0, 1], [0, 1], color="0.6", lw=1)
    for title, label, colour, mark in (
        (section.baseline, "before", "#d55e00", "o"),
        (section.chosen, "after", "#0072b2", "s"),
    ):
        curve = section.curves[title].all
        pairs = [(x, y) for n, x, y in zip(curve.count, curve.confidence, curve.accuracy, strict=True) if n >= 50]
        axes[4].plot(*zip(*pairs, strict=True), f"{mark}-", color=colour, ms=3, label=label)
    axes[4].set(xlabel="confidence", ylabel="share of right voxels", xlim=(0.2, 1), ylim=(0.2, 1), aspect="equal")
    axes[4].legend(frameon=False)
    return figure


def readme_table(results: Path) -> str:
    """Return the table of the README: that of the demonstration without intervals."""
    lines = [
        "| task | calibrator | NLL | ECE | BA-ECE | ACE | Dice | labels changed |",
        "|---|---|---|---|---|---|---|---|",
    ]
    task = ""
    with (results / "tables" / "demo.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            name = row["group"] if row["group"] != task else ""
            task, title = row["group"], row[""]
            errors = [f"{float(row[key]):.3f}".lstrip("0") for key in ("NLL", "ECE", "BA-ECE", "ACE")]
            flips = f"{float(row['Flip']):.2%}".replace("%", " %") if row["Flip"] else "none"
            cells = [
                name,
                f"**{title}**" if "(default)" in title else title,
                *errors,
                f"{float(row['DSC']):.3f}".lstrip("0"),
            ]
            lines.append(f"| {' | '.join([*cells, flips])} |")
    return "\n".join(lines)


def write_readme(results: Path, readme: Path = DOCS.parent / "README.md") -> None:
    """Put the table in its place in the README."""
    text = readme.read_text("utf-8")
    found = re.sub(r"\| task \| calibrator \|.*?(?=\n\n)", lambda _: readme_table(results), text, flags=re.DOTALL)
    readme.write_text(found, "utf-8")


def _save(figure: plt.Figure, name: str) -> None:
    matplotlib.rcParams["svg.hashsalt"] = "segcal"  # the same bytes every time
    figure.savefig(DOCS / "images" / f"{name}.svg", metadata={"Date": None})
    plt.close(figure)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        draw_confidence(Path(sys.argv[1]))
        write_readme(Path(sys.argv[1]))
    else:
        for draw in (draw_which, draw_how_many, draw_metrics, draw_wrong):
            draw()
