"""Metrics of plain tensors: in one call, or batch by batch.

Every item of a batch ``(batch, classes, *space)`` is a case; ``(voxels, classes)``, without space, is one case. As in
:func:`segcal.evaluate`, the number is the mean over cases in which it is defined. Metrics with `pooled` read it from
the voxels of all cases together. `average` overrides this.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from segcal.arguments import typed
from segcal.cases.kinds import check_kind, to_log_domain
from segcal.cases.kinds import like_probabilities as looks_like_probabilities
from segcal.cases.suspicion import like_probabilities, warn
from segcal.checks import as_tensor, check_choice, check_finite, check_labels, check_spacing
from segcal.errors import InputError
from segcal.metrics.base import Metric, Needs
from segcal.metrics.raters import rater_metrics
from segcal.raters import DECLARED, Raters
from segcal.statistics import CaseTables
from segcal.statistics.additive import AdditiveTable

AVERAGES = ("cases", "voxels")


@dataclass(frozen=True)
class CaseMean(AdditiveTable):
    """In how many cases a number is defined, and its sum over them."""

    cases: int
    total: float


class Meter:
    """Metrics that are fed batch by batch; what is kept is one number, or one small table, per metric.

    Args:
        metrics: by the names of the results.
        kind: what the numbers are: "logits", "probs" or "sigmoid".
        ignore: the label that does not count.
        average: "cases": the mean of one number per case; "voxels": one number of all voxels; None: as a metric says.
        **raters: the declaration of several, as of :class:`segcal.ArrayCases`; labels of a case then have its axes.
    """

    @typed
    def __init__(
        self,
        metrics: Mapping[str, Metric],
        kind: str = "logits",
        ignore: int | None = None,
        average: str | None = None,
        **raters: Any,
    ) -> None:
        self._raters = Raters.declared(**raters)
        self.metrics = rater_metrics(metrics, self._raters)
        self._needs = Needs.of(self.metrics.values())
        self._kind, self._ignore = check_kind(kind), ignore
        if average is not None:
            check_choice(average, "average", AVERAGES)
        if average == "voxels" and "surface" in self._needs.tables:
            raise InputError(
                "average is 'voxels', but distances between surfaces belong to one case each. Leave it out."
            )
        self._average = average
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self._sums: dict[str, object] = {}
        self._classes: int | None = None

    def __repr__(self) -> str:
        return f"Meter of {', '.join(self.metrics)}"

    @property
    def votes(self) -> int:
        """The votes that a voxel can have, 1 of one rater."""
        return 1 if self._raters is None else sum(self._raters.weights)

    def metric(self, name: str) -> Metric:
        """Return a metric; refuse one that these raters do not have."""
        if name not in self.metrics:
            raise InputError(
                f"{name} compares label maps, but shares hold none. Declare the maps with raters='axis', or take "
                "another metric."
            )
        return self.metrics[name]

    @typed
    def update(
        self, logits: object, labels: object, reference: object = None, spacing: tuple[float, ...] | None = None
    ) -> None:
        """Count a batch.

        Args:
            logits: ``(batch, classes, *space)``, of any floating type, on any device.
            labels: ``(batch, *space)``, class indices; of several raters one array per case, such as its shares.
            reference: ``(batch, *space)``, the prediction to compare with, for metrics of flips.
            spacing: the voxel size along each axis of space, for distances.
        """
        counted = self.tables(logits, labels, reference, spacing)  # all of it is looked at before any is kept
        classes = {tables.num_classes for tables in counted} | ({self._classes} - {None})
        if len(classes) > 1:
            raise InputError(
                f"logits has {counted[-1].num_classes} classes, but the batches before had {self._classes}. "
                "Use one meter per model, or call reset()."
            )
        self._classes = next(iter(classes), None)
        for tables in counted:
            for name in self.metrics:
                part = self.part(name, tables)
                self._sums[name] = self._sums[name] + part if name in self._sums else part

    def tables(
        self, logits: object, labels: object, reference: object = None, spacing: tuple[float, ...] | None = None
    ) -> list[CaseTables]:
        """Return the tables of each case of a batch, and keep nothing; the arguments are those of :meth:`update`."""
        if "reference" in self._needs.tables and reference is None:
            raise InputError("reference is missing, but flips are counted against one. Pass the prediction before.")
        batch, truth, old = self._divide(logits, labels, reference)
        if self._kind == "logits" and len(batch):
            warn(like_probabilities(["the batch"] if looks_like_probabilities(batch[0]) else []))
            if batch.is_cuda and old is None and self._raters is None and self._needs.tables <= {"classwise"}:
                return self._count_at_once(batch, truth, spacing)
        cases = zip(batch, truth, [None] * len(batch) if old is None else old, strict=True)
        return [self._count(*case, spacing) for case in cases]

    def compute(self) -> dict[str, float | None]:
        """Return the numbers of all that was counted; None where one is not defined."""
        return {name: self.value(name, self._sums.get(name)) for name in self.metrics}

    def part(self, name: str, tables: CaseTables) -> Any:
        """Return what is kept of a case for a metric, and adds up: its number, or the table that it reads."""
        metric = self.metrics[name]
        part = metric.part(tables)
        if metric.pooled if self._average is None else self._average == "voxels":
            return part
        number = metric.of_part(part)
        return CaseMean(int(number is not None), number or 0.0)

    def value(self, name: str, part: Any) -> float | None:
        """Return the number of summed tables."""
        if isinstance(part, CaseMean):
            return part.total / part.cases if part.cases else None
        return self.metrics[name].of_part(part)

    def _count(
        self, raw: Tensor, labels: Tensor, reference: Tensor | None, spacing: tuple[float, ...] | None
    ) -> CaseTables:
        logits = to_log_domain(raw, self._kind, "logits")
        check_spacing(spacing, logits.ndim - 1)
        votes, space = None, tuple(logits.shape[1:])
        if self._raters is None:
            truth = check_labels(labels, "labels", space, len(logits), self._ignore).cpu()
        else:
            votes = self._raters.votes(labels.cpu(), "labels", space, len(logits), self._ignore)
            truth = votes.labels()
        bands = self._needs.bands(truth)
        return self._needs.count(logits, truth, bands, reference, spacing=spacing, votes=votes).tables

    def _count_at_once(self, batch: Tensor, labels: Tensor, spacing: tuple[float, ...] | None) -> list[CaseTables]:
        """Return the tables of each case of logits that are on a device, where the labels stay too."""
        to_log_domain(batch[0], self._kind, "logits")
        check_finite(batch, "logits")
        check_spacing(spacing, batch.ndim - 2)
        truth = check_labels(labels, "labels", [len(batch), *batch.shape[2:]], batch.shape[1], self._ignore)
        return self._needs.count_images(batch, truth)

    def _divide(self, logits: object, labels: object, reference: object) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return logits, labels and references, cases along the first axis."""
        batch, truth = as_tensor(logits, "logits").detach(), as_tensor(labels, "labels")
        if batch.device.type not in ("cpu", "cuda"):
            batch = batch.cpu()
        old = None if reference is None else as_tensor(reference, "reference").cpu()
        if batch.ndim == (1 if self._kind == "sigmoid" else 2):  # voxels without space are one case
            batch, truth, old = batch.movedim(0, -1)[None], truth[None], None if old is None else old[None]
        other = old is not None and self._raters is None and old.shape != truth.shape
        if batch.ndim < 2 or truth.ndim < 1 or len(batch) != len(truth) or other:
            found = f"{tuple(truth.shape)}" if old is None else f"{tuple(truth.shape)}, reference {tuple(old.shape)}"
            raise InputError(
                f"logits has shape {tuple(batch.shape)} and labels {found}, but (batch, classes, *space) and (batch, "
                "*space) are needed. Of a single case, pass logits[None] and labels[None]."
            )
        return batch, truth, old


def on_tensors(name: str, metric: Metric) -> Callable[..., float | None]:
    """Return a metric as a function of logits and labels."""

    @typed
    def measure(
        logits: object,
        labels: object,
        *,
        kind: str = "logits",
        ignore: int | None = None,
        average: str | None = None,
        reference: object = None,
        spacing: tuple[float, ...] | None = None,
        bins: int | None = None,
        **options: Any,
    ) -> float | None:
        raters = {key: options.pop(key) for key in DECLARED if key in options}
        chosen = metric if bins is None else metric.with_bins(bins)
        meter = Meter({name: chosen.with_options(**options) if options else chosen}, kind, ignore, average, **raters)
        meter.metric(name)
        meter.update(logits, labels, reference, spacing)
        return meter.compute()[name]

    measure.__name__ = measure.__qualname__ = name
    measure.__doc__ = f"""Return the {metric.title}; None where it is not defined.

    Args:
        logits: ``(batch, classes, *space)``, of any floating type, on any device.
        labels: ``(batch, *space)``, class indices.
        kind: what the numbers are: "logits", "probs" or "sigmoid".
        ignore: the label that does not count.
        average: "cases" or "voxels"; None: {"all voxels together" if metric.pooled else "the mean over cases"}.
        reference: ``(batch, *space)``, the prediction to compare with, for metrics of flips.
        spacing: the voxel size along each axis of space, for distances.
        bins: another number of bins, for metrics that have them.
        options: other conventions, as the function behind the metric documents them; and those of several raters.
    """
    return measure
