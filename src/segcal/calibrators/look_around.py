r"""What the calibrators that see neighbours have in common: the margin.

A voxel's result depends on a window around it, which reaches `reach` voxels to each side. Near the border the image is
continued by reflection; an axis that is too short to be reflected is continued by its last value. A subclass writes
:meth:`LookAround.inner_scores`, which takes logits that have the margin already and returns the scores of what is
inside it. So a whole image and a piece cut out of it go the same way: :mod:`segcal.evaluation.slabs` applies a
calibrator piece by piece, with the same result and bounded memory, and training sees crops as if they were whole.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence

from torch import Tensor, nn

from segcal.calibrators.base import Calibrator, check_context
from segcal.checks import check_planes
from segcal.types import Context, Logits


class LookAround(Calibrator):
    """A calibrator whose voxels see their neighbours in the last two axes, or in all three."""

    pointwise = False
    fitted_by = "gradient"

    @abstractmethod
    def margin(self, axes: int) -> tuple[int, ...]:
        """Return how many voxels are added to each side of each of `axes` axes of space."""

    @abstractmethod
    def inner_scores(self, logits: Logits, context: Context | None = None, weight: Tensor | None = None) -> Tensor:
        """Return the scores of what is inside the margin.

        Args:
            logits: ``(batch, classes, *space)`` with the margin.
            context: with the margin.
            weight: ``(batch, 1, *inside)``, for how many voxels of the image each one stands; 1 if not given.
        """

    def scores(self, logits: Logits, context: Context | None = None) -> Tensor:
        """Return unnormalised log-probabilities; see :class:`segcal.calibrators.base.Calibrator`."""
        check_planes(logits, self.name)
        check_context(context)
        margin = self.margin(logits.ndim - 2)
        around = each_part(context, lambda part: with_margin(part.to(logits.dtype), margin))
        return self.inner_scores(with_margin(logits, margin), around)


def each_part(context: Context | None, change: Callable[[Tensor], Tensor]) -> Context | None:
    """Return a context whose parts were changed alike; `change` sees them as ``(batch, channels, *space)``."""
    if context is None:
        return None
    image, disagreement, _ = context
    return context._replace(
        image=None if image is None else change(image),
        disagreement=None if disagreement is None else change(disagreement.unsqueeze(1)).squeeze(1),
    )


def with_margin(values: Tensor, margin: Sequence[int]) -> Tensor:
    """Continue ``(batch, channels, *space)`` by reflection, and an axis that is too short for it by its last value.

    >>> import torch
    >>> with_margin(torch.tensor([[[[1.0, 2.0, 3.0]]]]), (0, 2))
    tensor([[[[3., 2., 1., 2., 3., 2., 1.]]]])
    >>> with_margin(torch.tensor([[[[1.0, 2.0]]]]), (0, 2))
    tensor([[[[1., 1., 1., 2., 2., 2.]]]])
    """
    sizes = values.shape[2:]
    long = [width if size > width else 0 for size, width in zip(sizes, margin, strict=True)]
    short = [width - own for width, own in zip(margin, long, strict=True)]
    for mode, widths in (("reflect", long), ("replicate", short)):
        if any(widths):
            values = nn.functional.pad(values, [width for width in reversed(widths) for _ in range(2)], mode=mode)
    return values


def without_margin(values: Tensor, margin: Sequence[int]) -> Tensor:
    """Return what is inside the margin, as a view."""
    for axis, width in enumerate(margin, start=2):
        values = values.narrow(axis, width, values.shape[axis] - 2 * width)
    return values
