"""Cases that a command keeps after it has read them, so that their files are opened once.

A case is read in one pass over its members. It is pooled in every way among which a choice is free, with the decisions
of each member. It is kept for whoever asks next, while all that is kept takes at most `room` bytes. Of what is beyond,
the cases that are under way stay until they are released, and files are opened again. What is given out is shared, so
nobody writes into it. A process that works on cases begins with nothing kept, and keeps nothing beyond the cases under
way.
"""

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Any, TypedDict

import torch
from torch import Tensor

from segcal.memory import free_memory
from segcal.raters import Votes

# Bytes that may be kept, where a quarter of what is free is more.
ROOM = 1 << 30
# The same where only a few cases are looked at again, for their images.
PICTURED = 1 << 28
# One that is worked on, and one that a thread reads meanwhile.
UNDER_WAY = 2


class Rest(TypedDict, total=False):
    """All of a case of files but its scores and labels."""

    mask: Tensor | None
    spacing: tuple[float, ...] | None
    image: Tensor | None
    kind_warning: str
    votes: Votes | None


@dataclass(frozen=True)
class Read:
    """One case as it was read: logits by pooling, and all else that cases of files have.

    Attributes:
        logits: ``(classes, *space)`` by the rule of pooling.
        disagreement: of the members, where it was asked for.
        labels: in the smallest type that holds them.
        decided: of each of several members the classes, ``(*space)``.
        digests: of the scores of each member, where they are compared with others.
    """

    logits: dict[str, Tensor]
    disagreement: Tensor | None
    labels: Tensor | None
    rest: Rest
    decided: tuple[Tensor, ...] = ()
    digests: tuple[bytes, ...] = ()

    @property
    def size(self) -> int:
        """Return the bytes of all arrays."""
        found = [*self.logits.values(), *self.decided, *self.rest.values(), self.disagreement, self.labels]
        return sum(each.nbytes for each in found if isinstance(each, Tensor | Votes))


class Kept:
    """Cases by id, and voxels that were drawn of them, within `room` bytes.

    Attributes:
        room: bytes that are left.
        rules: poolings that are compared: whoever reads one of them will ask for the others.
        compared: cases whose members are compared.
        disagreement: whether that of members will be asked for.
    """

    def __init__(self, room: int = 0) -> None:
        self.room = min(room, free_memory() // 4) if room else 0
        self.rules: tuple[str, ...] = ()
        self.compared: frozenset[str] = frozenset()
        self.disagreement = False
        self._cases: dict[str, Read] = {}
        self._under_way: dict[str, Read] = {}
        self._members: dict[str, Read] = {}
        self._drawn: dict[Hashable, Any] = {}

    def __getstate__(self) -> dict[str, object]:
        return vars(Kept()) | {name: getattr(self, name) for name in ("rules", "compared", "disagreement")}

    def add(self, case_id: str, case: Read) -> None:
        """Keep a case, if there is room, or while it is under way."""
        if case_id in self.compared and case.digests:
            self._members[case_id] = replace(case, logits={}, disagreement=None, labels=None, rest={})
        if case.size <= self.room:
            self.room -= case.size
            self._cases[case_id] = case
            return
        self._under_way[case_id] = case
        while len(self._under_way) > UNDER_WAY:
            del self._under_way[next(iter(self._under_way))]

    def get(self, case_id: str, pooling: str, disagreement: bool) -> Read | None:
        """Return a case that is kept with this pooling, and with disagreement if that is asked for."""
        found = self._cases.get(case_id) or self._under_way.get(case_id)
        if found is None or pooling not in found.logits:
            return None
        return None if disagreement and found.disagreement is None and len(found.decided) > 1 else found

    def members(self, case_id: str) -> Read | None:
        """Return what is kept of the members of a case."""
        return self._cases.get(case_id) or self._under_way.get(case_id) or self._members.get(case_id)

    def release(self, case_id: str) -> None:
        """Let go of a case that was under way."""
        self._under_way.pop(case_id, None)

    def keep_drawn(self, key: Hashable, drawn: Any, size: int) -> None:
        """Keep voxels that were drawn, if there is room."""
        if size <= self.room:
            self.room -= size
            self._drawn[key] = drawn

    def drawn(self, key: Hashable) -> Any:
        """Return such voxels, or None."""
        return self._drawn.get(key)


def narrow(labels: Tensor | None, most: int) -> Tensor | None:
    """Return labels from -1 to `most` in a type that holds them."""
    return labels if labels is None else labels.to(torch.int16 if most < 1 << 15 else torch.int32)
