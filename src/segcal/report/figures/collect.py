"""The figures of a folder of results: of every study that is there, by name, with a title and a sentence in words."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from segcal.report.figures.base import to_svg
from segcal.report.figures.corruptions import corruption_figure
from segcal.report.figures.detection import detection_figure
from segcal.report.figures.energy import energy_figure
from segcal.report.figures.flips import flip_figure
from segcal.report.figures.overlays import overlay_figure
from segcal.report.figures.regions import region_figure
from segcal.report.figures.reliability import reliability_figure
from segcal.report.figures.study_curves import binning_figure, size_figure
from segcal.report.figures.temperature import temperature_figure

OVERLAYS = 4


@dataclass(frozen=True)
class Drawn:
    """A figure with its words.

    Attributes:
        name: of its file, without the ending.
        task: which task it belongs to.
        title: what it shows.
        text: how to read it.
        draw: makes the figure, when it is needed.
        on_page: whether the page has it; what its case browser shows anyway is a file only.
    """

    name: str
    task: str
    title: str
    text: str
    draw: Callable[[], Any]
    on_page: bool = True

    @cached_property
    def svg(self) -> str:
        """Return the figure as SVG."""
        return to_svg(self.draw())

    def to_plain(self) -> dict[str, str]:
        """Return what the page embeds."""
        return {
            "name": self.name,
            "task": self.task,
            "title": self.title,
            "text": self.text,
            "svg": self.svg,
        }


def study_figures(studies: Mapping[str, Any], places: Mapping[str, Mapping[str, Any]]) -> list[Drawn]:
    """Return the figures of the studies, in the order of the page.

    Args:
        studies: their data by name.
        places: by task, `classes`, `background`, `baseline` and `chosen`.
    """
    drawn = []
    for task, place in places.items():
        drawn += [*_examples(studies, task, place), *_reliability(studies, task), *_flips(studies, task, place)]
        drawn += [*_selective(studies, task, place), *_curves(studies, task, place), *_shift(studies, task)]
        drawn += _energy(studies, task)
    return drawn


def _of(studies: Mapping[str, Any], study: str, key: str, task: str) -> Any:
    return studies.get(study, {}).get(key, {}).get(task)


def _middle(case: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**case["slices"][len(case["slices"]) // 2], "case": case["case"]}


def _examples(studies: Mapping[str, Any], task: str, place: Mapping[str, Any]) -> Iterator[Drawn]:
    found = _of(studies, "worst_cases", "tasks", task)
    if not found or not found["cases"]:
        return
    cases = [_middle(case) for case in found["cases"][:OVERLAYS]]
    draw = partial(overlay_figure, cases, place["classes"], place["background"])
    title, text = "Inputs, and the truth laid over them", "The cases of the browser."
    yield Drawn(f"inputs_{task}", task, title, text, draw, on_page=False)
    if all("temperature" in case for case in cases):
        text = "Above 1 the confidence of a voxel is lowered, below 1 it is raised; one scale for all cases."
        yield Drawn(f"temperature_{task}", task, "Local temperature", text, partial(temperature_figure, cases))


def _reliability(studies: Mapping[str, Any], task: str) -> Iterator[Drawn]:
    found = _of(studies, "reliability", "tasks", task)
    if found:
        curves = {f"{one['pipeline']} (ACE {100 * one['ace']['value']:.1f} %)": one["curve"] for one in found.values()}
        text = f"{studies['reliability']['rule']} This shows what is possible; it is not how to choose a calibrator."
        draw = partial(reliability_figure, curves, "all voxels, 15 bins")
        yield Drawn(f"reliability_{task}", task, "The best of all pipelines, chosen on the test cases", text, draw)


def _flips(studies: Mapping[str, Any], task: str, place: Mapping[str, Any]) -> Iterator[Drawn]:
    found = _of(studies, "flips", "closer", task)
    if found:
        title = "What a calibrator that does not keep the mask would change"
        text = (
            f"{found['pipeline']}, in the test case with most changes, and by distance from the boundary in "
            f"{found['cases']} test cases."
        )
        yield Drawn(f"flips_{task}", task, title, text, partial(flip_figure, found, place["background"]))


def _selective(studies: Mapping[str, Any], task: str, place: Mapping[str, Any]) -> Iterator[Drawn]:
    regions = _of(studies, "regions", "tasks", task)
    if regions:
        shown = list(dict.fromkeys([title for title in (place["baseline"], place["chosen"]) if title] + list(regions)))
        text = (
            "One box a pipeline: half of the test cases lie in the box, its line is the middle one. Wrong predictions "
            "should be unsure: there the error is the confidence itself."
        )
        draw = partial(region_figure, regions, shown)
        yield Drawn(f"regions_{task}", task, "Where the calibration error lies", text, draw)
    found = _of(studies, "detection", "tasks", task)
    if found:
        text = (
            "If mistakes could be found and only their confidence lowered, the error would move along the lines: down "
            "while the voxels together are too sure, and up once they are not. Single marks are selectors that were "
            "learned, at the share of mistakes that they find."
        )
        draw = partial(detection_figure, found, studies["detection"]["rates"])
        yield Drawn(f"detection_{task}", task, "What finding mistakes would be worth", text, draw)


def _curves(studies: Mapping[str, Any], task: str, place: Mapping[str, Any]) -> Iterator[Drawn]:
    sizes = _of(studies, "calibration_size", "tasks", task)
    if sizes:
        text = "Change against the number used here; bands are 95 % intervals. Near zero, more cases would not help."
        yield Drawn(f"size_{task}", task, "How many calibration cases are needed", text, partial(size_figure, sizes))
    bins = _of(studies, "binning", "tasks", task)
    if bins:
        first = [title for title in (place["baseline"], place["chosen"]) if title]
        shown = list(dict.fromkeys([*first, *bins["pipelines"]]))
        text = "The error depends on how finely confidence is divided; what matters is that the lines keep their order."
        yield Drawn(
            f"binning_{task}", task, "Does the number of bins matter?", text, partial(binning_figure, bins, shown)
        )


def _shift(studies: Mapping[str, Any], task: str) -> Iterator[Drawn]:
    found = _of(studies, "covariate_shift", "tasks", task)
    if found and found.get("example"):
        text = f"Case {found['example']['case']}, as the networks saw it in the tests under other conditions."
        draw = partial(corruption_figure, found["example"]["images"])
        yield Drawn(f"corruptions_{task}", task, "The same picture under strong corruptions", text, draw)


def _energy(studies: Mapping[str, Any], task: str) -> Iterator[Drawn]:
    found = _of(studies, "offsets", "examples", task)
    if found:
        text = (
            "The level of the raw scores varies over the image, although the network's own probabilities do not see "
            "it. Calibrators that see it can be misled; those that ignore a shift of all scores cannot."
        )
        yield Drawn(
            f"energy_{task}", task, "Free energy of the raw scores", text, partial(energy_figure, {task: found})
        )
