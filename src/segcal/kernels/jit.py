"""How the compiled loops of the package are compiled.

Machine code is kept on disk beside the source (or in the user's cache folder), so that only the first call on a
machine waits for the compiler. The loops release the interpreter lock: threads of one process run them side by side
(:mod:`segcal.kernels.threads`). numba's own parallel loops are not used: the process that compiled one runs it as it
was first compiled, every later process as it was optimised once more when it was stored, with sums in another order.
No fast-math, unless a loop asks for it: every operation is rounded as written, so that a result depends neither on the
width of the machine's vectors nor on where in a row a voxel stands.
"""

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba

Loop = TypeVar("Loop", bound=Callable[..., Any])

# numba keeps machine code as long as the file of the outer loop is unchanged, and does not look at the files of the
# loops that it calls. An outer loop that closes over this number is compiled anew when a file of this folder changes.
SOURCES = zlib.crc32(b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py"))))

OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy"}


def part(function: Loop) -> Loop:
    """Compile a loop that other loops call; it becomes part of them."""
    return numba.njit(**OPTIONS)(function)


def compiled(function: Loop, fastmath: set[str] | bool = False) -> Loop:
    """Compile a loop that Python calls, and keep the machine code.

    With `fastmath` all that it calls must be inlined by numba: a function of its own would be optimised apart in the
    process that compiles it, and together with the loop in those that read it from the disk.
    """
    try:
        return numba.njit(cache=True, fastmath=fastmath, **OPTIONS)(function)
    except RuntimeError:  # neither the package folder nor the home folder can be written to
        return numba.njit(fastmath=fastmath, **OPTIONS)(function)


def was_compiled(loop: Any) -> bool:
    """Return whether machine code of a loop is kept on this machine, if perhaps of an earlier version."""
    place = loop.stats.cache_path
    return place is not None and any(Path(place).glob(f"*.{loop.__name__}-*.nbi"))
