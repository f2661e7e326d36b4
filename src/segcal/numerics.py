r"""Small exact pieces of arithmetic that the rest of the package agrees on.

- free energy :math:`F(z) = \log \sum_c e^{z_c}` (Eq. 9) and canonical logits :math:`z - F(z)` (Eq. 8);
- the tie rule: of equal scores the lowest class index wins, and sorting is stable.

Some operations have another form while a graph is exported, for the operators that exported graphs have; the numbers
are the same.
"""

import torch
from torch import Tensor

from segcal.types import Logits, LogProbs

# Values of one step on a GPU: some such arrays of float64 take a gigabyte.
DEVICE_VALUES = 1 << 24


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the type in which numbers of `dtype` are computed: half types in float32, others in their own.

    >>> compute_dtype(torch.float16), compute_dtype(torch.float64)
    (torch.float32, torch.float64)
    """
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def at_once(values: int, each: int, device: torch.device | None) -> int:
    """Return how many voxels are worked on at once if each has so many values, and so many are wanted on the CPU.

    On other devices there are more: starting a step costs more there than its memory.

    >>> at_once(1 << 19, 16, torch.device("cpu")), at_once(1 << 19, 16, torch.device("cuda"))
    (32768, 1048576)
    """
    most = values if device is None or device.type == "cpu" else max(values, DEVICE_VALUES)
    return max(256, most // each)


def free_energy(logits: Logits, axis: int = 1) -> Tensor:
    """Return ``logsumexp`` of the logits over the class axis.

    >>> free_energy(torch.zeros(1, 4)).exp().round()
    tensor([4.])
    """
    return torch.logsumexp(logits, dim=axis)


def canonical_logits(logits: Logits, axis: int = 1) -> LogProbs:
    """Return the representative of the logits that does not depend on their offset: the log-softmax."""
    if logits.ndim == 2 and axis == 1 and logits.stride(0) == 1 and not torch.compiler.is_exporting():
        # Voxels that are neighbours in memory: along the other axis it is several times faster for few classes.
        return torch.log_softmax(logits.T, dim=0).T
    return torch.log_softmax(logits, dim=axis)


def winner(scores: Tensor, axis: int = 1) -> Tensor:
    """Return the index of the largest score; of equal ones, the lowest index.

    >>> winner(torch.tensor([[1.0, 3.0, 3.0]]))
    tensor([1])
    """
    # Both promise the first of equal values; `max` is several times faster, `argmax` is what exporters know.
    return scores.argmax(dim=axis) if torch.compiler.is_exporting() else scores.max(dim=axis).indices


def decided(before: Tensor, scores: Tensor) -> Tensor:
    """Return the class of each voxel from scores ``(classes, *space)``: the old one, unless another is strictly above.

    >>> decided(torch.tensor([1, 1]), torch.tensor([[3.0, 3.0], [3.0, 2.0]]))
    tensor([1, 0])
    """
    stays = scores.gather(0, before[None])[0] >= scores.amax(0)
    return torch.where(stays, before, winner(scores, axis=0))


def descending(scores: Tensor, axis: int = 1) -> tuple[Tensor, Tensor]:
    """Return scores in descending order and where they stood; equal ones in the order of their indices.

    >>> descending(torch.tensor([[1.0, 3.0, 3.0]]))[1]
    tensor([[1, 2, 0]])
    """
    if torch.compiler.is_exporting():  # stable as well, as exported graphs define it
        return scores.sort(dim=axis, descending=True)
    return scores.sort(dim=axis, descending=True, stable=True)


def running_minimum(values: Tensor, axis: int = 1) -> Tensor:
    """Return the smallest value so far along an axis.

    >>> running_minimum(torch.tensor([[3.0, 1.0, 2.0]]))
    tensor([[3., 1., 1.]])
    """
    if not torch.compiler.is_exporting():
        return values.cummin(dim=axis).values
    rows = list(values.unbind(axis))
    for k in range(1, len(rows)):
        rows[k] = torch.minimum(rows[k - 1], rows[k])
    return torch.stack(rows, dim=axis)


def count_below(points: Tensor, values: Tensor) -> Tensor:
    """Return how many of the ascending points ``(n,)`` are below each value.

    >>> count_below(torch.tensor([0.2, 0.5]), torch.tensor([0.1, 0.5, 0.7]))
    tensor([0, 1, 2])
    """
    if not torch.compiler.is_exporting():
        return torch.searchsorted(points, values.contiguous())
    count = torch.zeros_like(values, dtype=torch.int64)
    size = len(points)
    for bit in reversed(range(size.bit_length())):  # a search by halves: all values take the same steps
        further = count + (1 << bit)
        below = (further <= size) & (points[(further - 1).clamp(max=size - 1)] < values)
        count = torch.where(below, further, count)
    return count
