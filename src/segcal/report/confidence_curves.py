"""What conic scaling has learned: confidence before and after, for voxels whose surroundings differ.

Two classes are in question, all others far behind. One pair of axes for each context, with a line where it is low, in
the middle and high (the ends and the middle of its knots), the other contexts being in the middle of theirs.
"""

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from msgspec import structs
from torch import Tensor

from segcal.calibrators.base import Calibrator
from segcal.calibrators.conic import Conic
from segcal.calibrators.per_region import PerRegion
from segcal.calibrators.surroundings import CONTEXTS, WORDS
from segcal.report.figures import COLOURS, DASHES, new_figure, styled, to_svg
from segcal.report.page import PageFigure

LEVELS = ("low", "in the middle", "high")
FAR_BEHIND = 30.0


class ConfidenceCurve(NamedTuple):
    """Confidence before and after where one context has a level."""

    context: str
    level: str
    before: Tensor
    after: Tensor


@torch.no_grad()
def confidence_curves(calibrator: Conic) -> Iterator[ConfidenceCurve]:
    """Yield the curves of every context; one curve without a context."""
    gap = torch.linspace(0.01, 9, 200, dtype=torch.float64)
    logits = torch.full((calibrator.num_classes, len(gap)), -FAR_BEHIND, dtype=torch.float64)
    logits[0], logits[1] = gap, 0.0
    spans = dict(zip(calibrator.contexts, calibrator.hat_knots.split(calibrator.hat_counts), strict=True))
    middle = torch.zeros(len(CONTEXTS), len(gap), dtype=torch.float64)
    for name, knots in spans.items():
        middle[CONTEXTS.index(name)] = knots.quantile(0.5)
    for name in calibrator.contexts or ("",):
        for level in LEVELS if name else ("everywhere",):
            around = middle.clone()
            if name:
                knots = spans[name]
                around[CONTEXTS.index(name)] = {"low": knots[0], "high": knots[-1]}.get(level, knots.quantile(0.5))
            after = calibrator.scores_at(logits, around).softmax(0)[0]
            yield ConfidenceCurve(name, level, gap.sigmoid(), after)


@styled()
def confidence_figure(calibrator: Conic) -> Any:
    """Return the figure."""
    names = calibrator.contexts or ("",)
    figure, axes = new_figure(1, len(names), 2.6 * len(names) + 0.6, 3.0, sharey=True)
    for one in confidence_curves(calibrator):
        column, number = names.index(one.context), LEVELS.index(one.level) if one.level in LEVELS else 0
        axis = axes[0, column]
        axis.plot(one.before, one.after, color=COLOURS[number], linestyle=DASHES[number + 1], label=one.level)
        axis.set_title(WORDS.get(one.context, "all voxels"))
        axis.set_xlabel("confidence before")
    for axis in axes[0]:
        axis.plot([0.5, 1], [0.5, 1], color="#9aa3ad", linewidth=0.8)
        axis.legend(loc="upper left")
    axes[0, 0].set_ylabel("confidence after")
    return figure


def page_figures(calibrator: Calibrator | None) -> list[PageFigure]:
    """Return the figure for the page, of regions one each; none for others, or where figures cannot be drawn."""
    if isinstance(calibrator, PerRegion):
        each = [(region, one) for region, own in calibrator.each.items() for one in page_figures(own)]
        return [
            structs.replace(one, name=f"{one.name}_{number}", title=f"{one.title}: {region}")
            for number, (region, one) in enumerate(each)
        ]
    if not isinstance(calibrator, Conic) or find_spec("matplotlib") is None:
        return []
    text = (
        "Two classes in question: their winner's confidence before and after, where one thing around the voxel is low "
    )
    text += "or high and the others are in the middle."
    return [PageFigure("confidence_curves", "", "What was learned", text, to_svg(confidence_figure(calibrator)))]
