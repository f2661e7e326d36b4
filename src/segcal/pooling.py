r"""Pooling of an ensemble's members into one set of logits (Sec. 3.3).

- ``single``: the only member, unchanged.
- ``mean_logits``: :math:`\bar z = \frac1M \sum_m z_m`.
- ``mean_probs``: :math:`\log \bar p = \log \frac1M \sum_m S(z_m)`, computed in the log domain, so that no
  probability underflows and nothing is clipped.

How much the members disagree is found in the same pass: the mutual information of class and member,

.. math:: I = H\Big(\frac1M \sum_m p_m\Big) - \frac1M \sum_m H(p_m), \qquad p_m = S(z_m),

in nats, between 0 (all members say the same) and :math:`\log \min(M, C)`. It does not depend on the pooling.

Members are consumed one at a time: two of them are in memory at most, however many there are. Float32 and half types on
the CPU take a fused loop (:mod:`segcal.kernels.pooling_numba`); all else, plain tensor operations.
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
from segcal.kernels.pooling_numba import FusedSums
from segcal.numerics import canonical_logits, compute_dtype
from segcal.types import Logits

# Logarithms below it belong to probabilities that are zero.
LEAST = -1000.0


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
    running: _Fused | _Plain | None = None
    hows = [check_pooling(how) for how in hows]
    for number, member in enumerate(_checked(members)):
        if running is None:
            shape = member.shape
            running = (_Fused if _is_fused(member, hows) else _Plain)(hows, disagreement)
        running.add(member.reshape(len(member), -1), f"member {number}")
        del member
    assert running is not None
    pooled, information = running.result()
    return [each.reshape(shape) for each in pooled], None if information is None else information.reshape(shape[1:])


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


def _is_fused(member: Tensor, hows: Sequence[str]) -> bool:
    plain = member.requires_grad or member.device.type != "cpu" or member.dtype == torch.float64
    return not plain and "single" not in hows


class _Fused:
    """Members pooled in several ways by the loop of the CPU."""

    def __init__(self, hows: Sequence[str], disagreement: bool) -> None:
        self._hows, self._disagreement = hows, disagreement
        self._sums: FusedSums | None = None

    def add(self, member: Tensor, name: str) -> None:
        """Add a member ``(classes, n)``."""
        member = member.detach().contiguous()
        member = member.float() if member.dtype == torch.float64 else member  # where the first one has another type
        if self._sums is None:
            wanted = ("mean_logits" in self._hows, "mean_probs" in self._hows, self._disagreement)
            self._sums = FusedSums(member, *wanted)
        self._sums.add(member, name)

    def result(self) -> tuple[list[Tensor], Tensor | None]:
        """Return what was pooled, and the disagreement."""
        assert self._sums is not None
        found, information = {}, None
        if "mean_logits" in self._hows:
            found["mean_logits"] = self._sums.mean_logits()
        if "mean_probs" in self._hows or self._disagreement:
            found["mean_probs"], information = self._sums.mean_probs()
        return [found[how] for how in self._hows], information


class _Plain:
    """The same in tensor operations, for every device and type, and with gradients of `mean_logits`."""

    def __init__(self, hows: Sequence[str], disagreement: bool) -> None:
        self._running, self._disagreement = [POOLINGS[how]() for how in hows], disagreement
        self._needs_probs = disagreement or any(isinstance(each, MeanProbs) for each in self._running)
        self._count = 0
        self._probs = self._entropy = torch.zeros(())

    def add(self, member: Tensor, name: str) -> None:
        """Add a member ``(classes, n)``."""
        check_finite(member, name)
        member = member.to(compute_dtype(member.dtype))
        canonical = canonical_logits(member.detach(), axis=0) if self._needs_probs else member
        for each in self._running:
            each.add(member, canonical, self._count)
        if self._disagreement:
            probs = canonical.exp()
            self._probs = self._probs + probs
            self._entropy = self._entropy - (probs * canonical.clamp(min=LEAST)).sum(0)
        self._count += 1

    def result(self) -> tuple[list[Tensor], Tensor | None]:
        """Return what was pooled, and the disagreement."""
        pooled = [each.result(self._count) for each in self._running]
        if not self._disagreement or self._count < 2:
            return pooled, None
        mean = self._probs / self._count
        information = -(mean * mean.log().clamp(min=LEAST)).sum(0) - self._entropy / self._count
        return pooled, information.clamp(min=0).float()


def _checked(members: Iterable[Logits]) -> Iterator[Tensor]:
    shape: tuple[int, ...] | None = None
    for number, raw in enumerate(members):
        name = f"member {number}"
        member = as_tensor(raw, name)
        check_floating(member, name)
        if shape is not None and tuple(member.shape) != shape:
            what = "classes" if member.ndim == len(shape) and member.shape[1:] == shape[1:] else "shape"
            raise InputError(
                f"{name} has shape {tuple(member.shape)}, but member 0 has {shape}. "
                f"Members of one ensemble must agree in {what}; leave this one out or export it again."
            )
        shape = tuple(member.shape)
        yield member
    if shape is None:
        raise InputError("members is empty, but at least one member is needed. Pass the logits of each network.")
