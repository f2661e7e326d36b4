"""Draw the picture of the README: one embedded street scene, its confidence before and after, and the reliability.

    python examples/readme_figure.py docs/images/confidence.png

Needs matplotlib. Takes about a minute on two cores.
"""

import sys

import matplotlib
import numpy as np
import torch

import segcal
from segcal.demo.cases import EmbeddedCases
from segcal.statistics import count_logits

matplotlib.use("Agg")
from matplotlib import pyplot as plt

BINS = 15
SHOWN = "streets_0003"
BLUE, ORANGE = "#0072B2", "#D55E00"  # Okabe and Ito: told apart with every kind of colour vision


def curve(tables):
    """Mean confidence and accuracy of the bins that hold at least 50 voxels."""
    bins = tables.reliability[BINS]["all"]
    used = bins.count >= 50
    return bins.confidence[used] / bins.count[used], bins.right[used] / bins.count[used]


def main(path: str, count: int = 60, members: int = 5) -> None:
    cases = EmbeddedCases("streets", range(count), "mean_logits", members)
    cal, _, test = cases.split(cal=count // 2, seed=0)
    fitted = segcal.choose(cal)
    before = after = None
    for case in test:
        scores = fitted.calibrator.scores(case.logits[None].float())[0]
        for name, logits in (("before", case.logits), ("after", scores)):
            tables = count_logits(logits, case.labels, bins=(BINS,)).tables
            if name == "before":
                before = tables if before is None else before + tables
            else:
                after = tables if after is None else after + tables
    case = cases.read(SHOWN)
    confidence = [
        torch.softmax(case.logits, 0).amax(0).numpy(),
        fitted.calibrator(case.logits[None])[0].exp().amax(0).numpy(),
    ]
    wrong = np.ma.masked_equal((case.logits.argmax(0) != case.labels).numpy() & (case.labels >= 0).numpy(), False)

    figure, axes = plt.subplots(1, 4, figsize=(13, 3.0), width_ratios=[1.6, 1.6, 1.6, 1.1], layout="constrained")
    picture = case.image.numpy().transpose(1, 2, 0)
    axes[0].imshow((picture - picture.min()) / (picture.max() - picture.min()))
    axes[0].imshow(wrong, cmap="autumn", alpha=0.9, interpolation="nearest")
    axes[0].set_title("input; wrong pixels in red")
    for axis, values, title in zip(axes[1:3], confidence, ("confidence before", "after: same mask"), strict=True):
        shown = axis.imshow(values, vmin=0.3, vmax=1, cmap="cividis")
        axis.set_title(title)
    figure.colorbar(shown, ax=axes[1:3], shrink=0.85, pad=0.01)
    for axis in axes[:3]:
        axis.axis("off")
    axes[3].plot([0.2, 1], [0.2, 1], color="0.6", linewidth=1)
    axes[3].plot(*curve(before), "o-", color=ORANGE, markersize=3, label="before")
    axes[3].plot(*curve(after), "s-", color=BLUE, markersize=3, label="after")
    axes[3].set(xlabel="confidence", ylabel="share right", xlim=(0.2, 1), ylim=(0.2, 1), aspect="equal")
    axes[3].legend(frameon=False)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main(sys.argv[1])
