r"""Memory: how much this process can have, how much of it is free, and what each command needs for one case.

A command holds a case several times. It reads one while it works on another, pools members, calibrates, and reads back
what it writes. Beside scores there are numbers of eight bytes a voxel: labels, decisions, distances. A case of C
classes and V voxels is computed in a type of b bytes (half types in four). It needs

.. math:: F \cdot C V b + 64 V, \qquad F = \text{its entry in FACTORS}.

The factors were measured over numbers of classes, members, types and formats. They are peaks of a process beyond its
memory before it reads a case. ``tests/faults/test_memory_bounds.py`` holds every command to its own. What they do not
count is a constant: libraries, tables, and slabs of bounded size, a few hundred megabytes at most.

Free memory is the least of three. They are that of the machine, of its control group (a container, a job of a cluster),
and the process's own limit.

A command makes arrays of the same sizes for one case after the other. By default the C library gives large ones back to
the system, which clears every page again before the next use. That is a fifth of the time of a command that measures
cases. So commands keep some of it (:func:`reuse_memory`).
"""

import ctypes
import os
from collections.abc import Iterator, Sequence
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from segcal.errors import InputError

# How many times a command holds the scores of one case at its peak.
FACTORS = {"check": 4.0, "evaluate": 6.0, "audit": 6.0, "convert": 7.0} | dict.fromkeys(
    ("fit", "apply", "trust", "decide", "objects", "adapt", "monitor", "view", "report"), 9.0
)
# Bytes a voxel beside the scores: labels, decisions and the like, eight numbers of eight bytes.
VOXEL = 64
_UNKNOWN = 32 << 30
# Arrays up to this size are kept for the next of their kind, up to so many free bytes: names and values of glibc.
_REUSED = {-3: 32 << 20, -1: 256 << 20}  # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD
# Of a control group: the folder, the limit, what is used, and what of that is cached files and can be had at once.
_GROUPS = {
    True: ("/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    False: ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}


def reuse_memory() -> None:
    """Keep memory that is freed for the next array, where the C library can; what the environment says of it stays."""
    change = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if change is not None and not any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
        for option, value in _REUSED.items():
            change(option, value)


class Footprint(NamedTuple):
    """The work on cases, and the bytes that each of so many workers may take; None: all that is free then."""

    command: str = ""
    workers: int = 1
    room: int | None = None

    @classmethod
    def of(cls, command: str, workers: int = 1) -> "Footprint":
        """Share what is free now among the workers of a command."""
        return cls(command, workers, free_memory() // workers)

    def needed(self, shape: Sequence[int], dtype: np.dtype[Any]) -> int:
        """Return the bytes that stored scores ``(classes, *space)`` take at the peak; an axis of size 0 counts as 1.

        >>> Footprint("apply").needed((2, 10, 10), np.dtype("float16")) == 9 * 800 + 6400
        True
        """
        voxels = prod(max(size, 1) for size in shape[1:])
        each = max(dtype.itemsize, 4) if dtype.kind == "f" else 8  # scaled integers become float64
        scores = max([1, *shape[:1]]) * voxels * each
        return int(FACTORS.get(self.command, max(FACTORS.values())) * scores) + VOXEL * voxels

    def check(self, shape: Sequence[int], dtype: np.dtype[Any]) -> None:
        """Refuse a case that needs more than there is."""
        needed, room = self.needed(shape, dtype), free_memory() if self.room is None else self.room
        if needed > room:
            what = f"segcal {self.command}" if self.command else "what may be done to it"
            each = "" if self.workers == 1 else f" for each of {self.workers} workers"
            fewer = "" if self.workers == 1 else " fewer workers,"
            raise InputError(
                f"it needs about {needed / 1e9:.3g} GB with {what}, but {max(room, 0) / 1e9:.3g} GB is free{each}. "
                f"Use{fewer} a larger machine, or cut the case into tiles, as docs/howto/maps.md shows."
            )


def total_memory() -> int:
    """Return the most bytes that this process can have."""
    return min([_machine("MemTotal", "SC_PHYS_PAGES"), *(limit for limit, _ in _limits())])


def free_memory() -> int:
    """Return the bytes that this process can still take."""
    left = [limit - used for limit, used in _limits()]
    return max(0, min([_machine("MemAvailable", "SC_AVPHYS_PAGES"), *left]))


def _machine(line: str, name: str) -> int:
    """Return what the machine has: as Linux says it, with cached files that can be had at once; or as POSIX does."""
    found = [text.split() for text in _read("/proc/meminfo").splitlines() if text.startswith(f"{line}:")]
    if found:
        return int(found[0][1]) << 10
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf(name)
    except (AttributeError, OSError, ValueError):  # not a POSIX system, or one that does not say
        return _UNKNOWN


def _limits() -> Iterator[tuple[int, int]]:
    """Yield every limit that this process has, and how much of it is used."""
    try:
        import resource  # which not every system has

        most, used = resource.getrlimit(resource.RLIMIT_AS)[0], _read("/proc/self/statm").split()
        if most != resource.RLIM_INFINITY:
            yield most, int(used[0]) * os.sysconf("SC_PAGE_SIZE") if used else 0
    except ImportError:
        pass
    for line in _read("/proc/self/cgroup").splitlines():
        _, kinds, place = line.split(":", 2)
        if not kinds or "memory" in kinds.split(","):
            root, limit, used_name, cached = _GROUPS[not kinds]
            own = Path(root, place.lstrip("/"))
            for folder in (own, *own.parents)[: len(own.parts) - len(Path(root).parts) + 1]:
                most_text = _read(folder / limit).strip()
                if most_text.isdecimal():
                    stat = dict(each.split() for each in _read(folder / "memory.stat").splitlines())
                    yield int(most_text), int(_read(folder / used_name) or 0) - int(stat.get(cached, 0))


def _read(path: str | Path) -> str:
    try:
        return Path(path).read_text("ascii")
    except (OSError, ValueError):  # there is no such thing on this system
        return ""
