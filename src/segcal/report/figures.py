"""Figures as vector graphics: colours that everyone can tell apart, one look, SVG that is the same every time.

A figure is a function from plain data to a matplotlib figure, usable without the page; reliability diagrams (Fig. 8:
confidence against accuracy, before and after on one pair of axes) are here, those of a study beside it.

What conic scaling has learned is confidence before and after, for voxels whose neighbourhoods differ: two classes are
in question, all others far behind. One pair of axes for each context, with a line where it is low, in the middle and
high. The other contexts are in the middle of theirs.

>>> from segcal.report.figures import reliability_figure, to_svg  # doctest: +SKIP
>>> Path("reliability.svg").write_text(to_svg(reliability_figure(curves)))  # doctest: +SKIP
"""

import io
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from msgspec import Struct, to_builtins
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from segcal.calibrators.base import Calibrator
from segcal.calibrators.conic import Conic
from segcal.calibrators.neighbourhood import CONTEXTS, WORDS
from segcal.calibrators.per_region import PerRegion
from segcal.errors import load_extra
from segcal.report.document import CurveLists
from segcal.report.images import Encoded, decode_map

# Okabe and Ito: told apart with every kind of colour vision. Dashes and markers differ as well.
COLOURS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8A7A00")
DASHES = ("-", "-", "--", ":", "-.", "--", ":", "-.")
MARKERS = ("o", "s", "D", "^", "v", "P", "X", "*")
CLASS_COLOURS = (
    "#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7", "#8C564B", "#7F7F7F", "#BCBD22",
    "#17BECF", "#9467BD", "#FFBB78", "#98DF8A", "#FF9896", "#C5B0D5", "#C49C94", "#F7B6D2", "#DBDB8D", "#9EDAE5",
)  # fmt: skip
CONFIDENCE_MAP = "cividis"
# Names come from anywhere: a "$" in them is a letter and no formula.
LOOK: dict[Any, Any] = {
    "svg.fonttype": "none", "svg.hashsalt": "segcal", "text.parse_math": False, "font.size": 9, "axes.titlesize": 9.5,
    "font.sans-serif": ["DejaVu Sans"], "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
    "grid.color": "#e6e9ed", "axes.axisbelow": True, "legend.frameon": False, "image.interpolation": "none",
    "lines.linewidth": 1.6, "lines.markersize": 4,
}  # fmt: skip
IGNORED_BYTE = 255
# How every file of a figure begins: what begins otherwise was written by something else.
SVG_SIGNATURE = re.compile(rb"<\?xml.{1,2000}<dc:title>segcal</dc:title>", re.DOTALL)
CLIP_NAME = re.compile(r"(?<=[#\"])p[0-9a-f]{10}(?=[)\"])")
# Of an image behind a map, so many along its longer side: figures stay small enough to be mailed.
MOST_PIXELS = 160
# Of a context of conic scaling, and how far other classes are behind the two in question.
LEVELS = ("low", "in the middle", "high")
FAR_BEHIND = 30.0
LEARNED = (
    "Two classes in question: their winner's confidence before and after, where one thing around the voxel is low or "
    "high and the others are in the middle."
)
# Count, confidence and accuracy (None in empty bins), and low and high where there are intervals.
CurveData: TypeAlias = CurveLists | Mapping[str, Sequence[float | None]]


class Drawn(NamedTuple):
    """A figure of a task: the stem of its file, what it shows, how to read it.

    Attributes:
        draw: makes the figure, when it is needed.
        on_page: whether the page has it; what the page shows itself is a file only.
    """

    name: str
    task: str
    title: str
    text: str
    draw: Callable[[], Any]
    on_page: bool = True


class PageFigure(Struct):
    """A figure as SVG, with its words; with a task it is shown in that task's section only."""

    name: str
    task: str
    title: str
    text: str
    svg: str


@contextmanager
def styled() -> Iterator[None]:
    """Draw with the look of this package, whatever the user has set, and leave that as it was."""
    with load_extra("matplotlib", "report", "figures need").rc_context(LOOK):
        yield


def new_figure(rows: int, columns: int, width: float, height: float, **options: Any) -> tuple[Any, NDArray[Any]]:
    """Return a figure and its axes ``(rows, columns)``; no window, and nothing global is touched."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


@styled()
def to_svg(figure: Any) -> str:
    """Return a figure as SVG text: letters stay letters, and the same data gives the same bytes."""
    _settle(figure)
    stream = io.StringIO()
    figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": "segcal"})
    numbers: dict[str, int] = {}
    # Names of clip paths hold an address in memory; they are numbered as they come instead.
    return CLIP_NAME.sub(lambda found: f"clip{numbers.setdefault(found[0], len(numbers))}", stream.getvalue())


def _settle(figure: Any) -> None:
    """Lay a figure out once and for all; the solver's last digits differ from run to run, and are rounded away."""
    if figure.get_layout_engine() is None:
        return
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for axis in figure.axes:
        box = axis.get_position(original=True)
        axis.set_position([round(float(number), 3) for number in box.bounds])


def shorten(text: str, most: int = 36) -> str:
    """Return a name that fits: long ones are cut, and marks that turn the direction of writing are left out.

    >>> shorten("x" * 50, 5)
    'xxxx…'
    """
    plain = "".join(letter for letter in str(text) if letter.isprintable())
    return plain if len(plain) <= most else f"{plain[: most - 1]}…"


def line_style(number: int) -> dict[str, str]:
    """Return colour, dashes and marker of the n-th line of a figure."""
    return {"color": COLOURS[number % 8], "linestyle": DASHES[number % 8], "marker": MARKERS[number % 8]}


def show_image(axis: Any, encoded: Encoded | None, shape: tuple[int, ...]) -> None:
    """Show an image in grey or colour; an even grey where there is none."""
    axis.set_axis_off()
    if encoded is None:
        axis.imshow(np.full(shape[-2:], 0.25), cmap="gray", vmin=0, vmax=1)
        return
    values = decode_map(encoded)
    spread = float(values.max() - values.min()) or 1.0
    plain = "jpeg" in encoded or (values.ndim == 3 and encoded["low"] >= 0 and encoded["high"] <= 1)  # colours
    values = values if plain else (values - values.min()) / spread
    extent = (-0.5, values.shape[-1] - 0.5, values.shape[-2] - 0.5, -0.5)  # that of maps which are laid over it
    axis.imshow(_smaller(values), cmap="gray", vmin=0, vmax=255, extent=extent)


def _smaller(values: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Return an image ``(height, width[, 3])`` of 8 bits whose longer side is not larger than needed."""
    pixels = np.rint(255 * np.clip(np.moveaxis(values, 0, 2) if values.ndim == 3 else values, 0, 1)).astype(np.uint8)
    image = Image.fromarray(pixels)
    image.thumbnail((MOST_PIXELS, MOST_PIXELS))
    return np.asarray(image)


def show_classes(axis: Any, encoded: Encoded, background: bool, alpha: float) -> None:
    """Lay the classes of a map over what is there; the background and voxels that do not count stay clear."""
    from matplotlib.colors import to_rgb

    indices = decode_map(encoded).astype(int)
    layer = np.zeros((*indices.shape, 4))
    first = 1 if background else 0
    for number in np.unique(indices):
        if first <= number < IGNORED_BYTE:
            layer[indices == number] = (*to_rgb(CLASS_COLOURS[(number - first) % len(CLASS_COLOURS)]), alpha)
    axis.imshow(layer)
    axis.set_axis_off()


@styled()
def reliability_figure(curves: Mapping[str, CurveData], title: str = "", what: str = "right") -> Any:
    """Return a diagram of several curves with their counts below, on scales that are always the same.

    The title says which voxels and how many bins; `what` is "right" for the predicted class, "this class" for one.
    """
    figure, axes = new_figure(2, 1, 4.6, 5.4, height_ratios=[4, 1], sharex=True)
    _draw(axes[:, 0], curves, shorten(title, 70), what)
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center")
    return figure


@styled()
def reliability_panel(tasks: Mapping[str, Mapping[str, CurveData]], rule: str = "") -> Any:
    """Return one diagram per task beside each other, with the rule below by which their curves were chosen."""
    figure, axes = new_figure(2, len(tasks), 4.2 * len(tasks), 5.2, height_ratios=[4, 1], sharex=True)
    for column, (name, curves) in enumerate(tasks.items()):
        _draw(axes[:, column], curves, shorten(name))
        axes[0, column].legend(loc="upper left", fontsize=7.5)
    if rule:
        figure.supxlabel("\n".join(textwrap.wrap(rule, 55 * len(tasks))), fontsize=7.5, color="#55626f")
    return figure


def _draw(axes: NDArray[Any], curves: Mapping[str, CurveData], title: str, what: str = "right") -> None:
    upper, lower = axes
    upper.plot([0, 1], [0, 1], color="#8a939c", linestyle=(0, (4, 3)), linewidth=1)
    for number, (label, given) in enumerate(curves.items()):
        curve = to_builtins(given)
        style = line_style(number)
        x, y, count = (np.array(curve[key], float) for key in ("confidence", "accuracy", "count"))
        filled = np.isfinite(x)
        upper.plot(x[filled], y[filled], label=shorten(label, 44), **style)
        if curve.get("low") is not None:
            low, high = (np.array(curve[key], float)[filled] for key in ("low", "high"))
            upper.vlines(x[filled], low, high, color=style["color"], linewidth=1)
        width = 1 / len(count)
        each = 0.8 * width / len(curves)
        left = (np.arange(len(count)) + 0.1) * width + number * each
        lower.bar(left[filled], count[filled], each, align="edge", color=style["color"])
    upper.set(xlim=(0, 1), ylim=(0, 1), title=title, ylabel=f"share that is {what}")
    lower.set(yscale="log", ylim=(0.8, None), xlabel="confidence", ylabel="voxels")
    lower.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    lower.yaxis.set_minor_formatter(lambda value, _: "")


@torch.no_grad()
def confidence_curves(calibrator: Conic) -> Iterator[tuple[str, str, Tensor, Tensor]]:
    """Yield context, level, and confidence before and after; without a context one curve."""
    gap = torch.linspace(0.01, 9, 200, dtype=torch.float64)
    logits = torch.full((calibrator.num_classes, len(gap)), -FAR_BEHIND, dtype=torch.float64)
    logits[0], logits[1] = gap, 0.0
    spans = dict(zip(calibrator.contexts, calibrator.hat_knots.split(calibrator.hat_counts), strict=True))
    middle = torch.zeros(len(CONTEXTS), len(gap), dtype=torch.float64)
    for name, knots in spans.items():
        middle[CONTEXTS.index(name)] = knots.quantile(0.5)
    if not spans:
        yield "", "everywhere", gap.sigmoid(), calibrator.scores_at(logits, middle).softmax(0)[0]
    for name, knots in spans.items():
        for level, value in zip(LEVELS, (knots[0], knots.quantile(0.5), knots[-1]), strict=True):
            around = middle.clone()
            around[CONTEXTS.index(name)] = value
            yield name, level, gap.sigmoid(), calibrator.scores_at(logits, around).softmax(0)[0]


@styled()
def confidence_figure(calibrator: Conic) -> Any:
    """Return the figure of what conic scaling has learned."""
    names = calibrator.contexts or ("",)
    figure, axes = new_figure(1, len(names), 2.6 * len(names) + 0.6, 3.0, sharey=True)
    for context, level, before, after in confidence_curves(calibrator):
        axis, number = axes[0, names.index(context)], LEVELS.index(level) if level in LEVELS else 0
        axis.plot(before, after, color=COLOURS[number], linestyle=DASHES[number + 1], label=level)
        axis.set_title(WORDS.get(context, "all voxels"))
        axis.set_xlabel("confidence before")
    for axis in axes[0]:
        axis.plot([0.5, 1], [0.5, 1], color="#9aa3ad", linewidth=0.8)
        axis.legend(loc="upper left")
    axes[0, 0].set_ylabel("confidence after")
    return figure


def page_figures(calibrator: Calibrator | None) -> list[PageFigure]:
    """Return what conic scaling has learned, one figure each of regions; none where figures cannot be drawn."""
    if find_spec("matplotlib") is None:
        return []
    each: list[tuple[str, str, Calibrator | None]] = [("", "", calibrator)]
    if isinstance(calibrator, PerRegion):
        each = [(f"_{number}", f": {region}", own) for number, (region, own) in enumerate(calibrator.each.items())]
    return [
        PageFigure(f"confidence_curves{end}", "", f"What was learned{of}", LEARNED, to_svg(confidence_figure(own)))
        for end, of, own in each
        if isinstance(own, Conic)
    ]
