r"""Pooling of an ensemble's members into one set of logits (Sec. 3.3).

- ``single``: the only member, unchanged.
- ``mean_logits``: :math:`\bar z = \frac1M \sum_m z_m`.
- ``mean_probs``: :math:`\log \bar p = \log \frac1M \sum_m S(z_m)`, computed in the log domain, so that no
  probability underflows and nothing is clipped.

How much the members disagree is found in the same pass: the mutual information of class and member,

.. math:: I = H\Big(\frac1M \sum_m p_m\Big) - \frac1M \sum_m H(p_m), \qquad p_m = S(z_m),

in nats, between 0 (all members say the same) and :math:`\log \min(M, C)`. It does not depend on the pooling.

Members are consumed one at a time: two of them are in memory at most, however many there are.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from segcal.arguments import typed
from segcal.checks import as_tensor, check_choice, check_finite, check_floating
from segcal.errors import InputError
from segcal.numerics import canonical_logits, compute_dtype
from segcal.types import Logits

# Values that are taken from a member at a time: what is made of them stays in the cache. Tiles are whole vectors of any
# processor, since what is left at the end of a row is rounded otherwise.
TILE_VALUES, VECTOR = 1 << 17, 1 << 10


def single(members: Iterable[Tensor]) -> Tensor:
    """Return the only member."""
    iterator = iter(members)
    first = next(iterator)
    if next(iterator, None) is not None:
        raise InputError(
            "members has more than one member, but pooling 'single' takes one. Choose mean_logits or mean_probs."
        )
    return first


def mean_logits(members: Iterable[Tensor]) -> Tensor:
    """Return the mean of the members' logits."""
    total: Tensor | None = None
    count = 0
    for member in members:
        total = member.clone() if total is None else total.add_(member)
        count += 1
    assert total is not None
    return total.div_(count)


def mean_probs(members: Iterable[Tensor]) -> Tensor:
    """Return the log of the mean of the members' probabilities; no gradient comes back through it."""
    total: Tensor | None = None
    room: Tensor | None = None
    count = 0
    for member in members:
        flat = member.detach().reshape(len(member), -1)
        own = torch.empty_like(flat, memory_format=torch.contiguous_format) if room is None else room
        step = VECTOR * max(1, TILE_VALUES // (VECTOR * len(flat)))
        for part, place in zip(flat.split(step, dim=1), own.split(step, dim=1), strict=True):
            place.copy_(canonical_logits(part, axis=0))
        if total is None:
            total = own
        else:
            room = own  # for the next member
            torch.logaddexp(total, own, out=total)
        shape, count = member.shape, count + 1
    assert total is not None
    return total.sub_(math.log(count)).reshape(shape)


# Not a pooling but the wish to have it chosen, which only a comparison can do; and those among which it chooses.
BEST = "best"
POOLED = ("mean_probs", "mean_logits")

POOLINGS: dict[str, Callable[[Iterable[Tensor]], Tensor]] = {
    "single": single,
    "mean_logits": mean_logits,
    "mean_probs": mean_probs,
}


def check_pooling(how: str, may_choose: bool = False) -> str:
    """Return `how` if it names a pooling, or the wish to have one chosen where that may be."""
    if how == BEST and may_choose:
        return how
    if how == BEST:
        raise InputError(
            "pooling is 'best', but only a comparison on labelled cases can tell which one that is. Use segcal.choose "
            "or segcal fit, or declare mean_logits or mean_probs."
        )
    check_choice(how, "pooling", POOLINGS)
    return how


@typed
def pool(members: Iterable[Any], how: str) -> Logits:
    """Pool members ``(classes, *space)`` into one tensor of that shape.

    Args:
        members: an iterable of logits (or log-probabilities), one per member; a generator is read lazily.
        how: a name from :data:`POOLINGS`.

    >>> import torch
    >>> pool([torch.zeros(2, 3), torch.ones(2, 3)], "mean_logits").unique()
    tensor([0.5000])
    """
    return pool_members(members, how)[0]


def pool_members(members: Iterable[Logits], how: str, disagreement: bool = False) -> tuple[Logits, Tensor | None]:
    """Pool members as :func:`pool` does, and say where they disagree: float32 ``(*space)``, None for one member.

    >>> import torch
    >>> pool_members([torch.tensor([90.0, 0]), torch.tensor([0, 90.0])], "mean_logits", disagreement=True)
    (tensor([45., 45.]), tensor(0.6931))
    """
    rule, checked = POOLINGS[check_pooling(how)], _checked(members)
    if not disagreement:
        return rule(checked), None
    seen = _Disagreement()
    return rule(seen.watch(checked)), seen.result()


def pool_regions(members: Iterable[Logits], how: str, disagreement: bool = False) -> tuple[Logits, Tensor | None]:
    """Pool logits ``(regions, *space)`` of sigmoids as :func:`pool_members` does: each region by itself.

    Off and on are its two classes, with the logits 0 and z; disagreement is ``(regions, *space)``.

    >>> import torch
    >>> pool_regions([torch.tensor([2.0, 0.0]), torch.tensor([0.0, 0.0])], "mean_logits")[0]
    tensor([1., 0.])
    """
    both = (torch.stack([torch.zeros_like(member), member]) for member in map(_as_member, members))
    pooled, information = pool_members(both, how, disagreement)
    return pooled[1] - pooled[0], information


def _as_member(member: object) -> Tensor:
    return as_tensor(member, "member")


class _Disagreement:
    """Running sums over members: of their probabilities, and of their entropies."""

    def __init__(self) -> None:
        self._sums: tuple[Tensor, Tensor] | None = None
        self._count = 0

    def watch(self, members: Iterable[Tensor]) -> Iterator[Tensor]:
        for member in members:
            probs = canonical_logits(member, axis=0).exp_()
            entropy = _entropy(probs)
            if self._sums is None:
                self._sums = probs, entropy
            else:
                self._sums = self._sums[0].add_(probs), self._sums[1].add_(entropy)
            self._count += 1
            del probs, entropy
            yield member

    def result(self) -> Tensor | None:
        if self._sums is None or self._count < 2:
            return None
        mean, entropy = (total / self._count for total in self._sums)
        return (_entropy(mean) - entropy).clamp_(min=0).float()


def _entropy(probs: Tensor) -> Tensor:
    return torch.special.entr(probs).sum(dim=0)


def _checked(members: Iterable[Logits]) -> Iterator[Tensor]:
    shape: tuple[int, ...] | None = None
    for number, raw in enumerate(members):
        name = f"member {number}"
        member = as_tensor(raw, name)
        check_floating(member, name)
        check_finite(member, name)
        if shape is not None and tuple(member.shape) != shape:
            what = "classes" if member.ndim == len(shape) and member.shape[1:] == shape[1:] else "shape"
            raise InputError(
                f"{name} has shape {tuple(member.shape)}, but member 0 has {shape}. "
                f"Members of one ensemble must agree in {what}; leave this one out or export it again."
            )
        shape = tuple(member.shape)
        yield member.to(compute_dtype(member.dtype))
    if shape is None:
        raise InputError("members is empty, but at least one member is needed. Pass the logits of each network.")
