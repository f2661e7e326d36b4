"""What a shift of all logits does to a calibrator (Fig. 1a): two inputs with one softmax, and what comes out."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from segcal.calibrators.base import Calibrator
from segcal.evaluation.violations import adversarial, shift_change
from segcal.report.figures.base import COLOURS, new_figure, shorten, styled

MOST_CLASSES = 8
# Of the voxels that an audit tries, every so many are enough for one example.
SPARSE = 31
VISIBLE_SHIFTS = (5.0, 30.0, 1000.0)
VISIBLE = 0.1


@styled
def shift_figure(calibrator: Calibrator, name: str = "", classes: Sequence[str] | None = None) -> Any:
    """Return the illustration for a calibrator, with the voxel of its audit on which a shift changes most.

    Args:
        calibrator: fitted.
        name: of the calibrator, for titles.
        classes: names of the classes.
    """
    change, example = _clearest(calibrator)
    logits, shift = np.array(example["logits"]), float(example["the same plus"])
    softmax = np.exp(logits - logits.max())
    rows = {
        "softmax": softmax / softmax.sum(),
        "first": example["probabilities"],
        "second": example["and after the shift"],
    }
    shown = sorted(np.argsort(-np.maximum(rows["first"], rows["second"]), kind="stable")[:MOST_CLASSES].tolist())
    labels = [f"class {k}" if classes is None else shorten(classes[k], 14) for k in shown]
    figure, axes = new_figure(1, 3, 9.2, 3.1)
    place = np.arange(len(shown))
    pairs = (
        ("raw scores", logits, logits + shift, f"shifted by {shift:g}"),
        ("the network's own probabilities", rows["softmax"], rows["softmax"], "the same"),
        (f"after {shorten(name or 'calibration', 24)}", rows["first"], rows["second"], _verdict(change)),
    )
    for axis, (title, first, second, note) in zip(axes[0], pairs, strict=True):
        for number, (values, label) in enumerate(((first, "scores z"), (second, f"scores z + {shift:g}"))):
            height = np.asarray(values, float)[shown]
            axis.bar(place + 0.4 * number - 0.2, height, 0.4, color=COLOURS[number], label=label)
        axis.set(title=f"{title}:\n{note}", xticks=place)
        axis.set_xticklabels(labels, rotation=35 if len(shown) > 4 else 0)
    for axis in axes[0, 1:]:
        axis.set_ylim(0, 1)
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


@torch.no_grad()
def _clearest(calibrator: Calibrator) -> tuple[float, dict[str, Any]]:
    """Return the smallest shift that anyone can see the effect of, with the voxel where it is largest."""
    voxels = adversarial(calibrator.num_classes)[::SPARSE].round(decimals=3)
    if not calibrator.pointwise:
        return shift_change(calibrator, voxels)
    before = calibrator(voxels)
    worst = 0.0
    for shift in (*VISIBLE_SHIFTS, VISIBLE_SHIFTS[0]):  # the first again, where none of them can be seen
        after = calibrator(voxels + shift)
        worst = max(worst, float((after - before).abs().max()))
        change = (after.exp() - before.exp()).abs().amax(1)
        place = int(change.argmax())
        if float(change[place]) > VISIBLE:
            break
    pair = {"probabilities": before[place].exp().tolist(), "and after the shift": after[place].exp().tolist()}
    return worst, {"logits": voxels[place].tolist(), "the same plus": shift, **pair}


def _verdict(change: float) -> str:
    return "the same" if change < 1e-6 else "not the same"
