"""The memory that one thing may take: half of the machine's."""

import os

from segcal.errors import InputError

# A size above this is a lie of a header, and too long to be written out.
_ABSURD = 1 << 62


def memory_limit() -> int:
    """Return the most bytes that one array, or the parameters of one calibrator, may need."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    except (AttributeError, OSError, ValueError):  # not a POSIX system
        return 16 << 30


def check_memory(name: object, needed: int, limit: int, repair: str) -> None:
    """Refuse what needs more bytes than the limit when it is used; `repair` says what to do."""
    if needed > limit:
        size = f"{needed / 2**30:.1f} GiB" if needed < _ABSURD else "more memory than any machine has"
        raise InputError(
            f"{name} needs {size}, but at most {limit / 2**30:.1f} GiB (half of this machine's memory) can be used. "
            f"{repair}"
        )
