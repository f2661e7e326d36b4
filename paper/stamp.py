"""The code that made results: ``python -m paper.stamp`` prints the stamp of this checkout.

Between releases many states of the code have one version, so a stamp names both: the version, and a digest of the
package's source files.
"""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

import segcal
from segcal.atomic import write_text
from segcal.version import __version__

STAMP = "stamp.json"


def code_digest(folder: Path | None = None) -> str:
    """Return a short digest of the names and the bytes of a package's Python files; of segcal's, if none is named."""
    place = Path(segcal.__file__).parent if folder is None else folder
    digest = hashlib.sha256()
    for path in sorted(place.rglob("*.py")):
        digest.update(f"{path.relative_to(place).as_posix()}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:10]


def write_stamp(folder: Path) -> None:
    """Write which code made the results of a folder, beside others that made some of them before."""
    path = folder / STAMP
    before = json.loads(path.read_text("utf-8"))["code"].split(", ") if path.is_file() else []
    codes = dict.fromkeys((*before, code_digest()))
    write_text(path, json.dumps({"segcal": __version__, "code": ", ".join(codes)}) + "\n")


def read_stamps(folder: Path, names: Iterable[str]) -> str:
    """Return in words which code made the results in some folders of a folder."""
    found: dict[str, list[str]] = {}
    for name in names:
        path = folder / name / STAMP
        known = json.loads(path.read_text("utf-8")) if path.is_file() else None
        words = f"segcal {known['segcal']}, code {known['code']}" if known else "a segcal that left no stamp"
        found.setdefault(words, []).append(name)
    if len(found) == 1:
        return next(iter(found))
    return "; ".join(f"{', '.join(own)}: {words}" for words, own in found.items())


if __name__ == "__main__":
    print(f"segcal {__version__}, code {code_digest()}")
