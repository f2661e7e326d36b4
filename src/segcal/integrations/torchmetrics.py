"""torchmetrics: the metrics of segcal, right past 2^24 voxels, with states that ranks and shards add up.

States are int64 counts and float64 sums of fixed size, reduced by ``sum``. Memory does not grow with the voxels, and
``merge_state`` and DDP give what one process would.
"""

from typing import Any

import torch
from torch import Tensor

from segcal.integrations.attach import need
from segcal.metrics.rows import CaseRows, CountedRow
from segcal.raters import DECLARED
from segcal.report.figures import reliability_figure

need("torchmetrics", "lightning")
from torchmetrics import Metric  # noqa: E402


class SegmentationCalibration(Metric):
    """A metric of segcal as torchmetrics has them; ``MetricCollection({name: SegmentationCalibration(name, ...)})``.

    Args:
        name: of :data:`segcal.METRICS`, such as "ece" (top label, 50 bins, mean over cases), "ace" or "nll".
        num_classes: how many classes.
        kind: what predictions are: "logits", "probs" or "sigmoid"; it is never guessed.
        bins: of confidence, instead of the metric's own.
        ignore_index: the label that does not count.
        average: "cases" or "voxels"; None as the metric says.
        **options: of :class:`torchmetrics.Metric`, and `raters`, `num_raters` and `rater_weights` of several raters.
    """

    is_differentiable = False
    full_state_update = False
    plot_lower_bound = 0.0
    counts: Tensor
    sums: Tensor

    def __init__(
        self,
        name: str,
        num_classes: int,
        kind: str,
        bins: int | None = None,
        ignore_index: int | None = None,
        average: str | None = None,
        **options: Any,
    ) -> None:
        raters = {key: options.pop(key) for key in DECLARED if key in options}
        super().__init__(**options)
        self.reader = CaseRows(name, num_classes, kind, bins, ignore_index, average, **raters)
        self.add_state("counts", torch.from_numpy(self.reader.empty.counts.copy()), dist_reduce_fx="sum")
        self.add_state("sums", torch.from_numpy(self.reader.empty.sums.copy()), dist_reduce_fx="sum")

    @property
    def higher_is_better(self) -> bool | None:  # type: ignore[override]
        """The direction that the metric declares."""
        return {"higher": True, "lower": False, None: None}[self.reader.metric.better]

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Count a batch: ``(batch, classes, *space)`` and ``(batch, *space)``; or shares of raters of its shape."""
        for row in self.reader.rows(preds, target):
            self.counts += torch.from_numpy(row.counts).to(self.counts.device)
            self.sums += torch.from_numpy(row.sums).to(self.sums.device)

    def compute(self) -> Tensor:
        """Return the number, float64; NaN where it is not defined."""
        return torch.tensor(self.reader.value(self._row()), dtype=torch.float64, device=self.sums.device)

    def plot(self, val: Any = None, ax: Any = None) -> Any:
        """Return figure and axes: the values that are given, or else the reliability diagram of what was counted."""
        if val is not None:
            return self._plot(val, ax)
        curve = self.reader.curve(self._row())
        lists = {"count": curve.count, "accuracy": curve.right, "confidence": curve.confidence}
        filled = curve.count > 0
        means = {key: (v if key == "count" else v / curve.count.clip(1))[filled].tolist() for key, v in lists.items()}
        title = f"{self.reader.name} = {float(self.compute()):.4f}, {self.reader.bins} bins"
        figure = reliability_figure({"prediction": means}, title)
        return figure, figure.axes

    def _row(self) -> CountedRow:
        return CountedRow(self.counts.cpu().numpy(), self.sums.cpu().numpy())
