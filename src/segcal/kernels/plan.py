r"""The input of a fused kernel: which of six forms the map of a calibrator has, and the tables of that form.

With :math:`x = z - m`the scores are, by form, as follows; the *centre* m of a voxel is nothing, its largest logit, its
free energy or its last logit:

- ``affine``: :math:`s = W_e x + b_e`, e the winner if there are several maps. Its tables are W, ``(C,)`` for a diagonal
  or ``(E, C, C)``, and b, ``(E, C)``, left out if there is none;
- ``drops``: with the logits in descending order and :math:`x_k = z_{(k)} - z_{(k+1)}`,
  :math:`s_{(k)} = -\sum_{l < k} (A_e x + b_e)_l`; tables A, ``(C, C - 1, C - 1)``, and b, ``(C, C - 1)``;
- ``mixture``: :math:`s = \log(w_1 S(\beta z) + w_2 S(z) + w_3 / C)`; table :math:`(\beta, w)`, ``(4,)``;
- ``table``: :math:`s = \log \max(f(S(z)) + \text{slope} \cdot S(z), \text{floor})`, f linear between points; tables
  points, values, and (slope, floor);
- ``curves``: :math:`s_k = -\sum_j (\beta_j(u) + \gamma_{ikj})\, r_j(z_i - z_k)`, the map of
  :mod:`segcal.calibrators.conic`; tables knots, base, hats, knots of hats, and of pairs, ``(1 or C, C, groups)``;
- ``network``: :math:`s = z / T`, T = 1 + log(1 + e^{t + c_0}) - log(1 + e^{c_0}), t made of the largest
  log-probabilities by layers with ReLU between them. Its tables are weights ``(outputs, inputs)`` and bias of each
  layer. The CPU has no loop for it.

``drops`` are computed in descending order of the logits and cut by a running minimum, since rounding need not be
monotone. ``mixture`` and ``table`` are computed by steps of which each is monotone in float32. The log-probabilities
are :math:`s - \log \sum e^s`, with the winner's lead of :mod:`segcal.calibrators.tie_break`. Tables are float64, and
are used in the type that is computed in. Below them are the tables in the order in which kernels read them: those of a
CUDA device, and of functions the CPU's.
"""

import functools
import math
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

Form: TypeAlias = Literal["affine", "drops", "mixture", "table", "curves", "network"]
Centre: TypeAlias = Literal["nothing", "top", "energy", "last"]
CENTRES: tuple[Centre, ...] = ("nothing", "top", "energy", "last")

# The winner's lead, in units of the rounding of the result: see segcal.calibrators.tie_break.
LEAD_UNITS = 8
# A table is searched from where the leading bits of a probability say: eight after the exponent, from 2^-32 to 2^-1.
SHIFT, FIRST, PLACES = 15, (127 - 32) << 8, 31 << 8
# A temperature of t: 1 at t = 0, by c_0, and above the smallest everywhere; see segcal.calibrators.local_temperature.
SMALLEST_TEMPERATURE = 1e-3
AT_ONE = math.log(math.exp(1 - SMALLEST_TEMPERATURE) - 1)
LARGEST_SLOPE = 1e30  # times nothing, it is nothing
MOST_ON_HOST = 1 << 14  # numbers; more take longer to copy and to compare than to prepare where they are


class FusedPlan(NamedTuple):
    """A calibrator's map, as data.

    Attributes:
        form: one of the six.
        tables: of that form, float64, where the calibrator is or on the host (:func:`on_host`).
        centre: what is taken from the logits of a voxel; for ``affine``.
        keeps: whether the decision must survive the rounding of the result.
        spans: how many knots each context has; for ``curves``.
        group: ramps that share a coefficient of a pair; for ``curves``.
        bounded: a uniform term keeps all probabilities within what float32 can say; for ``mixture``.
    """

    form: Form
    tables: tuple[Tensor, ...]
    centre: Centre = "top"
    keeps: bool = False
    spans: tuple[int, ...] = ()
    group: int = 1
    bounded: bool = True

    @classmethod
    def scaled(cls, factor: Tensor, num_classes: int) -> "FusedPlan":
        """Return one factor for all classes."""
        return cls("affine", (factor.expand(num_classes),), keeps=True)


def on_host(*tables: Tensor) -> list[Tensor]:
    """Return tables in the memory of the host, float64, by one copy; where they lie if they are too large for it."""
    values = [table.detach().double() for table in tables]
    sizes = [table.numel() for table in values]
    if all(table.device.type == "cpu" for table in values) or sum(sizes) > MOST_ON_HOST:
        return values
    flat = torch.cat([table.reshape(-1) for table in values]) if len(values) > 1 else values[0].reshape(-1)
    parts = flat.cpu().split(sizes)
    return [part.reshape(table.shape) for part, table in zip(parts, values, strict=True)]


def _fours(numbers: Tensor) -> Tensor:
    """Return float32 numbers four by four, the fours of the second axis: ``(a, b, c)`` as ``(a, b / 4, c, 4)``."""
    filled = torch.nn.functional.pad(numbers.float(), (0, 0, 0, -numbers.shape[1] % 4))
    return filled.unflatten(1, (-1, 4)).movedim(2, -1).contiguous()


def affine_tables(tables: list[Tensor]) -> Tensor:
    """Return weights of matrices, of which the first column is the bias.

    Maps of winners lie next to each other, within fours of columns, within rows.
    """
    weight, bias = tables
    return _fours(torch.cat([bias[..., None], weight], -1).permute(1, 2, 0))


@functools.cache
def sorting_network(size: int) -> tuple[int, ...]:
    """Return indices to compare, two by two, that sort (Batcher's odd-even mergesort)."""
    found = []
    p = 1
    while p < size:
        k = p
        while k >= 1:
            for start in range(k % p, size - k, 2 * k):
                for i in range(start, min(start + k, size - k)):
                    if i // (2 * p) == (i + k) // (2 * p):
                        found += [i, i + k]
            k //= 2
        p *= 2
    return tuple(found)


def drop_tables(tables: list[Tensor]) -> Tensor:
    """Return weights by rank, sorted gap (in fours) and winner, with biases in place of the first gap, which is 0.

    A rank is lower than the first by the sum of the drops above it. Each drop is a map of the differences of sorted
    gaps. What a gap adds is the difference of what the steps to it and from it add.
    """
    weight = tables[0].cumsum(1)  # (winner, rank, step)
    of_gap = weight - torch.nn.functional.pad(weight[..., 1:], (0, 1))
    return _fours(torch.cat([tables[1].cumsum(1)[..., None], of_gap], -1).permute(1, 2, 0))


def network_tables(tables: list[Tensor]) -> tuple[Tensor, tuple[int, ...], tuple[int, ...]]:
    """Return rows of layers, each with its bias first; then sizes before and after layers, and where each starts."""
    pairs = list(zip(tables[::2], tables[1::2], strict=True))
    rows = [torch.cat([bias[:, None], weight], 1).flatten() for weight, bias in pairs]
    starts = tuple(sum(len(each) for each in rows[:number]) for number in range(len(rows)))
    return torch.cat(rows).float(), (pairs[0][0].shape[1], *(len(bias) for _, bias in pairs)), starts


def function_tables(form: str, tables: list[Tensor], classes: int) -> tuple[tuple[Tensor, Tensor, Tensor], int]:
    """Return points with slopes and heights, first guesses, and numbers; then how many points there are."""
    if form == "mixture":
        beta, tempered, original, uniform = tables[0].unbind()
        numbers = torch.stack([beta, tempered, original, uniform / classes]).float()
        return (numbers, numbers.new_zeros(1, dtype=torch.int32), numbers), 0
    points, heights, numbers = (table.float() for table in tables)
    widths = points.diff()
    # Where points coincide, whatever is above has the higher value.
    slopes = torch.where(widths > 0, heights.diff() / widths, LARGEST_SLOPE).clamp(max=LARGEST_SLOPE)
    return (torch.cat([points, points.new_zeros(1), slopes, heights]), first_guesses(points), numbers), len(points)


def searched(table: Tensor, knots: int) -> tuple[Tensor, Tensor]:
    """Return the points of a table, with more that no probability reaches, and the piece below each number of points.

    A piece is four numbers: start, slope, height of the start, height of the end. Before the first point and after the
    last it is the next one.
    """
    points, slopes, heights = table[:knots], table[knots + 1 : 2 * knots], table[2 * knots :]
    pieces = torch.stack([points[:-1], slopes, heights[:-1], heights[1:]], 1)
    return torch.cat([points, torch.full_like(points, torch.inf)]), torch.cat([pieces[:1], pieces, pieces[-1:]])


def first_guesses(points: Tensor) -> Tensor:
    """Return how many points lie below each of many small intervals of [0, 1], and the first step of the search.

    Intervals are those of the leading bits of p below a half, and of 1 - p above it: narrow at both ends.
    """
    edges = _intervals(points.device)
    below = torch.searchsorted(points.contiguous(), edges, right=False)
    most = torch.cat(
        [torch.searchsorted(points.contiguous(), edges[1:], right=True) - below[:-1], below.new_ones(1)]
    ).max()
    step = 2 ** most.log2().floor().long()
    return torch.cat([below[:-1], step[None]]).int()


@functools.cache
def _intervals(device: torch.device) -> Tensor:
    """Return where these intervals begin, and the end of the last."""
    ends = torch.arange(FIRST, FIRST + PLACES + 1, dtype=torch.int32, device=device).mul(1 << SHIFT)
    edges = ends.view(torch.float32).contiguous()
    edges[0] = 0
    return torch.cat([edges[:-1], 1 - edges.flip(0)])


def curve_tables(plan: FusedPlan, tables: list[Tensor]) -> tuple[tuple[Tensor, ...], tuple[Any, ...]]:
    """Return ramps ``(J, 4)``, slopes ``(1 + T, J, filled to fours)``, pieces of hats ``(T, 2)``, and pairs.

    The passed share of a ramp or of a piece is from 0 to 1. It is a number times a rate, plus a start. A ramp is start,
    rate and width; the last one has no end, and its width is one. Slopes are those of the ramps where all pieces are
    ahead, and what each piece adds, times the widths. Then come the numbers of ramps and contexts and the context of
    each piece. The last are the numbers of winners with their own curves, of ramps in a group, and of groups.
    """
    knots, base, hats, hat_knots, pairs = tables
    ramps, pieces = len(base), [span - 1 for span in plan.spans]
    widths = torch.cat([knots.diff(), knots.new_ones(1)])
    begins = [sum(plan.spans[:number]) for number in range(len(plan.spans))]
    parts = [slice(begin, begin + count) for begin, count in zip(begins, pieces, strict=True)]
    slopes = torch.cat(
        [sum([hats[begin] for begin in begins], base)[None], *(hats[1:][part] - hats[part] for part in parts)]
    )
    slopes = torch.nn.functional.pad(slopes * widths, (0, -ramps % 4))
    lows = torch.cat([knots[:0], *(hat_knots[part] for part in parts)])
    rates = 1 / (torch.cat([knots[:0], *(hat_knots[1:][part] for part in parts)]) - lows)
    rows = torch.stack([-knots / widths, 1 / widths, widths, widths], 1)
    flat = torch.cat([rows.flatten(), slopes.flatten(), torch.stack([-lows * rates, rates], 1).flatten()]).float()
    given = flat.split([rows.numel(), slopes.numel(), 2 * len(lows)])
    owners = tuple(number for number, count in enumerate(pieces) for _ in range(count))
    sizes = (ramps, len(pieces), owners, len(pairs), plan.group, -(-ramps // plan.group))
    return (*given, _fours(pairs.clamp(min=0).permute(1, 2, 0)) if len(pairs) else flat), sizes
