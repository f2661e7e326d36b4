"""How a file is known again: by its size, by a sample of its content, and, where it is an input, by its time.

Reading everything again to find out that nothing changed would cost as much as the work itself. So a file is known by
its size and by :data:`BLOCKS` blocks of its bytes, spread evenly from the first to the last: that is where headers are,
and the checksums of zip, gzip and png files, which depend on all of their content. An input is known by its time of
change as well, newer or older. What is not noticed is an input of the same size and time whose bytes differ only
between the blocks. A folder (zarr) is known by the names, and in this way by the content, of all its files.
"""

import hashlib
import os
from pathlib import Path

BLOCKS = 16
BLOCK_BYTES = 4096


def content_digest(path: Path) -> str:
    """Return a digest of what a file or folder holds, "" if it is not there; wherever it is, and whenever it came."""
    return _digest(path, time=False)


def input_digest(path: Path) -> str:
    """Return a digest of what a file or folder holds, and when it was changed; "" if it is not there."""
    return _digest(path, time=True)


def _digest(path: Path, time: bool) -> str:
    if path.is_file():
        return hashlib.sha256(_sample(path, time)).hexdigest()
    if not path.is_dir():
        return ""
    found = hashlib.sha256()
    for file in sorted(file for file in path.rglob("*") if file.is_file()):
        found.update(repr(file.relative_to(path).parts).encode("utf-8", "surrogateescape") + _sample(file, time))
    return found.hexdigest()


def _sample(path: Path, time: bool) -> bytes:
    with path.open("rb", buffering=0) as file:
        facts = os.fstat(file.fileno())
        last = max(facts.st_size - BLOCK_BYTES, 0)
        parts = [f"{facts.st_size} {facts.st_mtime_ns if time else 0} ".encode()]
        for start in dict.fromkeys(last * number // (BLOCKS - 1) for number in range(BLOCKS)):
            file.seek(start)
            parts.append(file.read(BLOCK_BYTES))
    return b"".join(parts)
