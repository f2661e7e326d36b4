"""Draw the figures of the guide: ``python docs/figures.py`` writes them to docs/images, in some seconds.

Two are read from the rows of the board, so that they cannot say anything else; two are of made-up voxels.
"""

import csv
import re
from collections.abc import Iterator
from pathlib import Path

import matplotlib
import numpy as np
import torch

matplotlib.use("svg")
import matplotlib.pyplot as plt

import segcal
from segcal.metrics.base import Needs

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


def _save(figure: plt.Figure, name: str) -> None:
    matplotlib.rcParams["svg.hashsalt"] = "segcal"  # the same bytes every time
    figure.savefig(DOCS / "images" / f"{name}.svg", metadata={"Date": None})
    plt.close(figure)


if __name__ == "__main__":
    for draw in (draw_which, draw_how_many, draw_metrics, draw_wrong):
        draw()
