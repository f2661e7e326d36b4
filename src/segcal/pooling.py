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
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
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
# Logarithms below it belong to probabilities that are zero.
LEAST, TILE_VOXELS = -1000.0, 1 << 14


class Running(ABC):
    """A pooling under way: it takes one member ``(classes, n)`` after the other."""

    total: Tensor

    @abstractmethod
    def add(self, member: Tensor, canonical: Tensor, count: int) -> None:
        """Add a member, and the same less its free energy; `count` came before it."""

    def result(self, count: int) -> Tensor:
        """Return what so many members are pooled into."""
        return self.total


class Single(Running):
    """The only member."""

    def add(self, member: Tensor, canonical: Tensor, count: int) -> None:
        """Take the member, and refuse another."""
        if count:
            raise InputError(
                "members has more than one member, but pooling 'single' takes one. Choose mean_logits or mean_probs."
            )
        self.total = member


class MeanLogits(Running):
    """The mean of the members' logits."""

    def add(self, member: Tensor, canonical: Tensor, count: int) -> None:
        """Add the logits."""
        self.total = self.total.add_(member) if count else member.clone()

    def result(self, count: int) -> Tensor:
        """Divide the sum."""
        return self.total.div_(count)


class MeanProbs(Running):
    """The log of the mean of the members' probabilities; no gradient comes back through it."""

    def add(self, member: Tensor, canonical: Tensor, count: int) -> None:
        """Add the probabilities."""
        if count:
            torch.logaddexp(self.total, canonical, out=self.total)
        else:
            self.total = canonical.clone()

    def result(self, count: int) -> Tensor:
        """Divide the sum."""
        return self.total.sub_(math.log(count))


# Not a pooling but the wish to have it chosen, which only a comparison can do; and those among which it chooses.
BEST = "best"
POOLED = ("mean_probs", "mean_logits")

POOLINGS: dict[str, type[Running]] = {
    "single": Single,
    "mean_logits": MeanLogits,
    "mean_probs": MeanProbs,
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
    (pooled,), information = pool_each(members, [how], disagreement)
    return pooled, information


def pool_each(
    members: Iterable[Logits], hows: Sequence[str], disagreement: bool = False
) -> tuple[list[Logits], Tensor | None]:
    """Pool members in several ways at once, as :func:`pool_members` does in each."""
    running, seen = [POOLINGS[check_pooling(how)]() for how in hows], _Disagreement()
    canonical_too = disagreement or any(isinstance(each, MeanProbs) for each in running)
    count, room = 0, torch.empty(0)
    for member in _checked(members):
        flat, shape = member.reshape(len(member), -1), member.shape
        if canonical_too:
            room = torch.empty_like(flat, memory_format=torch.contiguous_format) if not count else room
            step = VECTOR * max(1, TILE_VALUES // (VECTOR * len(flat)))
            for part, own in zip(flat.detach().split(step, dim=1), room.split(step, dim=1), strict=True):
                own.copy_(canonical_logits(part, axis=0))
        for each in running:
            each.add(flat, room, count)
        if disagreement:
            seen.add(room)
        count += 1
        del member, flat
    return [each.result(count).reshape(shape) for each in running], seen.result(shape[1:])


def pool_regions(
    members: Iterable[Logits], hows: Sequence[str], disagreement: bool = False
) -> tuple[list[Logits], Tensor | None]:
    """Pool logits ``(regions, *space)`` of sigmoids as :func:`pool_each` does: each region by itself.

    Off and on are its two classes, with the logits 0 and z; disagreement is ``(regions, *space)``.

    >>> import torch
    >>> pool_regions([torch.tensor([2.0, 0.0]), torch.tensor([0.0, 0.0])], ["mean_logits"])[0]
    [tensor([1., 0.])]
    """
    both = (torch.stack([torch.zeros_like(member), member]) for member in map(_as_member, members))
    pooled, information = pool_each(both, hows, disagreement)
    return [each[1] - each[0] for each in pooled], information


def _as_member(member: object) -> Tensor:
    return as_tensor(member, "member")


class _Disagreement:
    """Running sums over members: of their probabilities, and of their entropies."""

    def __init__(self) -> None:
        self._count = 0

    def add(self, canonical: Tensor) -> None:
        if not self._count:
            self._probs, self._entropy = torch.zeros_like(canonical), torch.zeros_like(canonical[0])
        self._count += 1
        for own, probs, entropy in zip(*map(_tiles, (canonical, self._probs, self._entropy[None])), strict=True):
            found = own.exp()
            probs += found
            entropy -= found.mul_(own.clamp(min=LEAST)).sum(0)

    def result(self, space: torch.Size) -> Tensor | None:
        if self._count < 2:
            return None
        mean = self._probs.div_(self._count)
        found = self._entropy.div_(-self._count)
        for probs, entropy in zip(_tiles(mean), _tiles(found[None]), strict=True):
            entropy -= (probs * probs.log().clamp_(min=LEAST)).sum(0)
        return found.clamp_(min=0).float().reshape(space)


def _tiles(values: Tensor) -> Sequence[Tensor]:
    return values.split(TILE_VOXELS, dim=1)


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
