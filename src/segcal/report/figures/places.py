"""Figures of what the page draws itself: reliability before and after in every part, and calibration against Dice."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from segcal.report.figures.collect import Drawn
from segcal.report.figures.reliability import reliability_figure, reliability_panel
from segcal.report.figures.scatter import scatter_figure
from segcal.report.figures.study_curves import TITLES


def place_figures(places: Mapping[str, Mapping[str, Any]], studies: Mapping[str, Any]) -> list[Drawn]:
    """Return these figures of every task, as files only.

    Args:
        places: by task, what the page's document has of it.
        studies: data of the studies by name.
    """
    drawn = [*_panel(studies)]
    for task, place in places.items():
        if place["baseline"] and place["chosen"]:
            drawn += [*_diagrams(task, place), _scatter(task, place)]
    return drawn


def _diagrams(task: str, place: Mapping[str, Any]) -> Iterator[Drawn]:
    stages = {"before": place["curves"][place["baseline"]], "after": place["curves"][place["chosen"]]}
    edges = [band["from"] for band in place["bands"].get(place["baseline"], [])]
    parts: list[tuple[str, str, str, int | None]] = [("all", "all voxels", "all", None)]
    if place["background"] and "foreground" in stages["before"]:
        parts.append(("foreground", "voxels of structures", "foreground", None))
    parts += [(f"band{k}", f"from {edge:g} voxels off the boundary", "bands", k) for k, edge in enumerate(edges)]
    named = [place["classes"][number] for number in place["shown_classes"]]
    parts += [(f"class{k}", f"probability of class {text}", "classes", k) for k, text in enumerate(named)]
    for name, title, key, number in parts:
        curves = {stage: own[key] if number is None else own[key][number] for stage, own in stages.items()}
        draw = partial(reliability_figure, curves, title, "this class" if key == "classes" else "right")
        yield Drawn(f"before_after_{task}_{name}", task, title, "", draw, on_page=False)


def _scatter(task: str, place: Mapping[str, Any]) -> Drawn:
    dice, error = (place["cases"][metric] for metric in ("dice", "ece"))
    titles = {"before": place["baseline"], "after": place["chosen"]}
    stages = {stage: list(zip(dice[title], error[title], strict=True)) for stage, title in titles.items()}
    title = f"{TITLES['ece']} against Dice: {task}"
    return Drawn(f"scatter_{task}", task, title, "", partial(scatter_figure, stages, title), on_page=False)


def _panel(studies: Mapping[str, Any]) -> Iterator[Drawn]:
    found = studies.get("reliability")
    if found:
        curves = {
            task: {f"{one['pipeline']} ({100 * one['ace']['value']:.1f} %)": one["curve"] for one in roles.values()}
            for task, roles in found["tasks"].items()
            if roles
        }
        draw = partial(reliability_panel, curves, found["rule"])
        yield Drawn("reliability_panel", "", "Reliability of chosen pipelines", found["rule"], draw, on_page=False)
