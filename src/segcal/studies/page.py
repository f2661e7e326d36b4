"""The report of a benchmark: one page, and its figures as files if they are asked for.

``segcal benchmark`` and ``segcal demo`` pass on what they have just computed; ``segcal report`` reads a folder of
results once, and goes the same way.

Figures are those of the studies, of the diagrams that the page shows itself, and of a shift. The effect of a shift of
all logits on a calibrator is Fig. 1a, two inputs with one softmax, and what comes out.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from msgspec import Struct, convert
from numpy.typing import NDArray

from segcal.atomic import write_text
from segcal.benchmark.protocol import Pipeline
from segcal.benchmark.results import Unit, read_results
from segcal.benchmark.summaries import summarise
from segcal.calibrators.base import Calibrator
from segcal.documents import parse_json, read_text
from segcal.errors import ArtifactError, InputError, SegcalError
from segcal.evaluation.audit import adversarial, shift_change
from segcal.fitting.artifact import load
from segcal.report.document import Document, TaskSection
from segcal.report.figures import (
    COLOURS,
    MARKERS,
    SVG_SIGNATURE,
    Drawn,
    new_figure,
    reliability_figure,
    shorten,
    styled,
    to_svg,
)
from segcal.report.page import BENCHMARK_PAGE, PageFigure, write_page
from segcal.studies import STUDIES
from segcal.studies.binning import ReliabilityData, panel_figure
from segcal.studies.document import make_document
from segcal.studies.run import Finished, read_outcomes
from segcal.studies.study import drawn_of
from segcal.target import check_file, make_folder

PAGE = "report.html"
NO_FIGURES = "Figures of the studies are left out: install them with pip install 'segcal[report]'."
# The order of the page, which begins with what is easiest to see; other studies follow.
ORDER = (
    "worst_cases", "reliability", "flips", "regions", "detection", "calibration_size", "binning", "covariate_shift",
    "offsets",
)  # fmt: skip
SHIFT_TEXT = (
    "Two sets of raw scores that differ by one number for all classes mean the same to the network. "
    "The voxel is the one of the audit on which the calibrator's answer differs most."
)
MOST_CLASSES = 8
# Of the voxels that an audit tries, every so many are enough for one example.
SPARSE = 31
VISIBLE_SHIFTS = (5.0, 30.0, 1000.0)
VISIBLE = 0.1
Values = NDArray[np.float64]


def write_report(
    folder: str | Path, path: str | Path | None = None, figures: str | Path | None = None, overwrite: bool = False
) -> Path:
    """Write the report of a folder of results and return its path.

    Args:
        folder: written by `segcal benchmark` or `segcal demo`.
        path: of the page; ``report.html`` in the folder if None.
        figures: a folder for the figures as SVG files, or None.
        overwrite: replace files that are no report and no figures of ours; never those of the results.
    """
    if not Path(folder).is_dir():
        raise InputError(
            f"{folder} is not a folder, but one of segcal benchmark or segcal demo is needed. Check the path."
        )
    page = Path(folder) / PAGE if path is None else Path(path)
    check_file(page, BENCHMARK_PAGE, _results(Path(folder)), overwrite)
    document, studies = read_document(folder)
    return _write(page, document, studies, Path(folder), figures, overwrite)


def write_page_of(finished: Finished, reduced: Sequence[str] = (), overwrite: bool = False) -> Path:
    """Write the page of a benchmark that has just run into its folder and return its path.

    `reduced` says what a demonstration did less of than everything; `overwrite` is that of :func:`write_report`.
    """
    results, summary = finished.setting.results, finished.setting.summary
    page = results.folder / PAGE
    check_file(page, BENCHMARK_PAGE, _results(results.folder), overwrite)
    document = make_document(results, summary, finished.studies, reduced)
    return _write(page, document, finished.studies, results.folder, None, overwrite)


def _results(folder: Path) -> list[Path]:
    """Return the files of a folder of results, which no page replaces; without the pages."""
    return [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".html"]


def read_document(folder: str | Path) -> tuple[Document, dict[str, Struct]]:
    """Return the document of a folder of results, and the data of its studies by name."""
    try:
        results = read_results(folder)
        studies = read_outcomes(results.folder)
        return make_document(results, summarise(results), studies, _reduced(results.folder)), studies
    except SegcalError:  # says what is wrong already
        raise
    except (KeyError, TypeError, IndexError, ValueError, AttributeError) as error:
        raise ArtifactError(
            f"{folder} holds results that this segcal cannot read ({type(error).__name__}: {error}), but they must be "
            "as it writes them. Run the benchmark again."
        ) from None


def _write(
    page: Path,
    document: Document,
    studies: Mapping[str, Struct],
    folder: Path,
    figures: str | Path | None,
    overwrite: bool,
) -> Path:
    sections = {section.task: section for section in document.sections if not section.test_on}
    shown: list[PageFigure] = []
    try:
        for each in result_figures(studies, sections, folder):
            svg = to_svg(each.draw()) if each.on_page or figures is not None else ""
            if each.on_page:
                shown.append(PageFigure(each.name, each.task, each.title, each.text, svg))
            if figures is not None:
                target = Path(figures) / f"{each.name}.svg"
                make_folder(target.parent)
                check_file(target, SVG_SIGNATURE, (), overwrite)
                write_text(target, svg)
    except InputError as missing:
        if figures is not None or "matplotlib" not in str(missing):
            raise
        document.notes.append(NO_FIGURES)
    return write_page(page, document, shown)


def _reduced(folder: Path) -> list[str]:
    """Return what the demonstration in a folder did less of than everything."""
    try:
        return convert(parse_json(read_text(folder / "verdict.json"))["reduced"], list[str])
    except (OSError, ValueError, KeyError, TypeError):
        return []


def result_figures(studies: Mapping[str, Struct], sections: Mapping[str, TaskSection], folder: Path) -> list[Drawn]:
    """Return all figures of a folder of results, from the data of its studies and the page's section of each task."""
    names = [name for name in dict.fromkeys((*ORDER, *STUDIES)) if name in studies]
    drawn = [one for each in sections.values() for name in names for one in STUDIES[name].figures(studies[name], each)]
    if isinstance(reliability := studies.get("reliability"), ReliabilityData):
        drawn.append(panel_figure(reliability))
    for section in sections.values():
        if section.baseline and section.chosen:
            drawn += _before_after(section, {"before": section.baseline, "after": section.chosen})
    for section in sections.values():
        drawn += _shifts(section, folder)
    return drawn


def _before_after(section: TaskSection, titles: Mapping[str, str]) -> Iterator[Drawn]:
    """Yield reliability before and after, of all voxels and subsets, and calibration error against Dice, as files."""
    stages = {stage: section.curves[title] for stage, title in titles.items()}
    parts: list[tuple[str, str, str, int | None]] = [("all", "all voxels", "all", None)]
    if section.background and stages["before"].foreground is not None:
        parts.append(("foreground", "voxels of structures", "foreground", None))
    edges = [band.start for band in section.bands.get(titles["before"], [])]
    parts += [(f"band{k}", f"from {edge:g} voxels off the boundary", "bands", k) for k, edge in enumerate(edges)]
    named = [section.classes[number] for number in section.shown_classes]
    parts += [(f"class{k}", f"probability of class {text}", "classes", k) for k, text in enumerate(named)]
    for name, title, key, number in parts:
        found = {stage: getattr(own, key) for stage, own in stages.items()}
        curves = found if number is None else {stage: own[number] for stage, own in found.items()}
        draw = partial(reliability_figure, curves, title, "this class" if key == "classes" else "right")
        yield Drawn(f"before_after_{section.task}_{name}", section.task, title, "", draw, on_page=False)
    dice, error = section.cases.dice, section.cases.ece
    pairs = {stage: list(zip(dice[title], error[title], strict=True)) for stage, title in titles.items()}
    title = f"ECE against Dice: {section.task}"
    yield drawn_of(section, "scatter", title, "", scatter_figure, pairs, title, on_page=False)


@styled()
def scatter_figure(stages: Mapping[str, Sequence[tuple[float | None, float | None]]], title: str = "") -> Any:
    """Return calibration error against Dice, one dot per case and stage; cases without a value are left out."""
    figure, axes = new_figure(1, 1, 4.8, 3.6)
    axis = axes[0, 0]
    for number, (label, pairs) in enumerate(stages.items()):
        known = [(dice, 100 * error) for dice, error in pairs if dice is not None and error is not None]
        style = {"c": COLOURS[number % 8], "marker": MARKERS[number % 8]}
        axis.scatter([x for x, _ in known], [y for _, y in known], s=18, alpha=0.8, label=shorten(label), **style)
    axis.set(xlim=(0, 1), ylim=(0, None), xlabel="Dice", ylabel="calibration error in %", title=shorten(title, 60))
    axis.legend()
    return figure


def _shifts(section: TaskSection, folder: Path) -> Iterator[Drawn]:
    """Yield the shifted-logit illustration of the chosen calibrator, and of matrix scaling if it was fitted."""
    for title in dict.fromkeys((section.chosen or "", "ms(mean_logits)")):
        row = next((row for row in section.rows if row.pipeline == title), None)
        if row is None or row.calibrator == "identity" or "," in title:
            continue
        unit = Unit(task=section.task, repeat=0, pipeline=Pipeline(row.pooling, row.calibrator))
        try:
            calibrator = load(folder / unit.calibrator_path).calibrator
        except (SegcalError, OSError):
            continue
        heading, draw = f"What a shift of all scores does: {title}", partial(shift_figure, calibrator, title)
        name = f"shift_{section.task}_{row.calibrator}"
        yield Drawn(name, section.task, heading, SHIFT_TEXT, partial(draw, section.classes))


@styled()
def shift_figure(calibrator: Calibrator, name: str = "", classes: Sequence[str] | None = None) -> Any:
    """Return the illustration for a fitted calibrator, with the voxel of its audit on which a shift changes most."""
    change, shift, logits, before, after = _clearest(calibrator)
    softmax = np.exp(logits - logits.max())
    softmax /= softmax.sum()
    shown = sorted(np.argsort(-np.maximum(before, after), kind="stable")[:MOST_CLASSES].tolist())
    labels = [f"class {k}" if classes is None else shorten(classes[k], 14) for k in shown]
    figure, axes = new_figure(1, 3, 9.2, 3.1)
    place = np.arange(len(shown))
    verdict = "the same" if change < 1e-6 else "not the same"
    panels = (
        ("raw scores", logits, logits + shift, f"shifted by {shift:g}"),
        ("the network's own probabilities", softmax, softmax, "the same"),
        (f"after {shorten(name or 'calibration', 24)}", before, after, verdict),
    )
    for axis, (title, first, second, note) in zip(axes[0], panels, strict=True):
        for number, (values, label) in enumerate(((first, "scores z"), (second, f"scores z + {shift:g}"))):
            axis.bar(place + 0.4 * number - 0.2, values[shown], 0.4, color=COLOURS[number], label=label)
        axis.set(title=f"{title}:\n{note}", xticks=place)
        axis.set_xticklabels(labels, rotation=35 if len(shown) > 4 else 0)
    for axis in axes[0, 1:]:
        axis.set_ylim(0, 1)
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


@torch.no_grad()
def _clearest(calibrator: Calibrator) -> tuple[float, float, Values, Values, Values]:
    """Return the largest change, the smallest shift that anyone can see, and the voxel where it changes most.

    Of this voxel: its logits, and the probabilities of the calibrator without the shift and with it.
    """
    voxels = adversarial(calibrator.num_classes)[::SPARSE].round(decimals=3)
    if not calibrator.pointwise:
        change, found = shift_change(calibrator, voxels)
        first, second = (np.array(found[key], float) for key in ("probabilities", "and after the shift"))
        return change, float(np.array(found["the same plus"])), np.array(found["logits"], float), first, second
    before = calibrator(voxels)
    worst = 0.0
    for shift in (*VISIBLE_SHIFTS, VISIBLE_SHIFTS[0]):  # the first again, where none of them can be seen
        after = calibrator(voxels + shift)
        worst = max(worst, float((after - before).abs().max()))
        changes = (after.exp() - before.exp()).abs().amax(1)
        place = int(changes.argmax())
        if float(changes[place]) > VISIBLE:
            break
    first, second = (each[place].exp().double().numpy() for each in (before, after))
    return worst, shift, voxels[place].double().numpy(), first, second
