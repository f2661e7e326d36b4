"""Compare two folders of results, of ``segcal demo`` or ``segcal benchmark``, to the last printed digit.

    python -m benchmarks.same_numbers OLD NEW [--digits 12]

Every table, verdict.json, summary.json and the document of every study is compared: tables as text, documents value by
value. Left out are the fingerprints of settings and code, and where files were written: they are no numbers. With
``--digits`` numbers of documents may differ beyond so many significant digits; those of tables never. Prints what
differs and exits with 1 if anything does.
"""

import argparse
import difflib
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PATTERNS = ("tables/*", "verdict.json", "summary.json", "studies/*.json")
# Keys that say by what and where results were made, and no number.
LEFT_OUT = {"hash", "digest", "written"}
MOST_SHOWN = 10


def files_of(folder: Path) -> set[str]:
    """Return the files of a folder that hold results, by their path inside it."""
    found = {path.relative_to(folder).as_posix() for pattern in PATTERNS for path in folder.glob(pattern)}
    if not found:
        sys.exit(f"error: {folder} holds no results, but {', '.join(PATTERNS)} are needed. Check the path.")
    return found


def differences(old: Path, new: Path, digits: int | None = None) -> Iterator[str]:
    """Yield one line per difference between two files of one name."""
    texts = [path.read_text(encoding="utf-8") for path in (old, new)]
    if texts[0] == texts[1]:
        return
    if old.suffix == ".json":
        yield from _unequal(*(json.loads(text) for text in texts), "", digits)
        return
    for line in difflib.unified_diff(*(text.splitlines() for text in texts), n=0, lineterm=""):
        if not line.startswith(("---", "+++", "@@")):
            yield line


def _unequal(old: Any, new: Any, place: str, digits: int | None) -> Iterator[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            if key in LEFT_OUT:
                continue
            if key not in old or key not in new:
                yield f"{place}.{key} only in the {'new' if key in new else 'old'} one"
            else:
                yield from _unequal(old[key], new[key], f"{place}.{key}", digits)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for number, pair in enumerate(zip(old, new, strict=True)):
            yield from _unequal(*pair, f"{place}[{number}]", digits)
    elif not _same(old, new, digits):
        yield f"{place}: {json.dumps(old)[:200]} -> {json.dumps(new)[:200]}"


def _same(old: Any, new: Any, digits: int | None) -> bool:
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (old, new))
    if digits is not None and numbers and math.isfinite(old) and math.isfinite(new):
        return abs(old - new) <= 10.0**-digits * max(abs(old), abs(new))
    return type(old) is type(new) and old == new


def compare(old: Path, new: Path, digits: int | None = None) -> dict[str, list[str]]:
    """Return what differs, by file."""
    names = [files_of(folder) for folder in (old, new)]
    found = {name: ["only in the old folder"] for name in names[0] - names[1]}
    found |= {name: ["only in the new folder"] for name in names[1] - names[0]}
    for name in names[0] & names[1]:
        lines = list(differences(old / name, new / name, digits))
        if lines:
            found[name] = lines
    return dict(sorted(found.items()))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument(
        "--digits", type=int, metavar="N", help="significant digits of numbers in documents; default: all"
    )
    options = parser.parse_args(arguments)
    found = compare(options.old, options.new, options.digits)
    for name, lines in found.items():
        print(f"{name}: {len(lines)} differences")
        print(*(f"  {line}" for line in lines[:MOST_SHOWN]), sep="\n")
        if len(lines) > MOST_SHOWN:
            print(f"  ... and {len(lines) - MOST_SHOWN} more")
    total = len(files_of(options.old) | files_of(options.new))
    print(f"{len(found)} of {total} files differ" if found else f"the same numbers in {total} files")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
