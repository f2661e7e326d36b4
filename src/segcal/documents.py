"""The border at which text, JSON and TOML come in and results go out as JSON and CSV, each file as a whole.

Documents come from files that nothing guarantees, so sizes are bounded before anything is read:

- Nothing is opened that is not a plain file: a named pipe would be waited for, for ever.
- A file of text has at most 64 MB.
- A JSON text has at most four million entries, each of which becomes an object many times its size. A TOML text has at
  most 1 MB and 256 dots a line. The time that a name takes grows with the square of their number.
- Containers are nested at most 64 deep and whole numbers have at most 64 bits. A few bytes can ask for more than a
  stack or a number can hold. Readers then fail in ways of their own, often much later.
- Every failure is one sentence with the name of the file.
"""

import csv
import io
import json
import os
import re
import stat
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from segcal.atomic import write_text
from segcal.errors import ArtifactError, InputError
from segcal.names import csv_cell

Known = TypeVar("Known")
MAX_BYTES = 64 << 20
MAX_DEPTH = 64
MAX_INTEGER = 2**63 - 1
MAX_ENTRIES = 4_000_000
MAX_TOML, MAX_DOTS = 1 << 20, 256
# Valid in JSON, but not in a file (lone surrogates) or not on a terminal.
_ESCAPED = re.compile("[\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn whatever a library raises on a damaged file into one sentence with the file's name."""
    check_plain_file(path)
    try:
        yield
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError(f"{path} is missing, but it is needed. Add the file or leave out its case.") from None
    except Exception as error:  # damaged files make zip, gzip, PNG and NIfTI readers raise almost anything
        reason = (str(error).splitlines() or [""])[0][:200]
        raise InputError(
            f"{path} cannot be read ({type(error).__name__}: {reason}), but a complete file is needed. Export it again."
        ) from None


def read_text(path: Path) -> str:
    """Read a text file of bounded size."""
    with reading(path):
        with path.open("rb") as stream:
            content = stream.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise InputError(
                f"{path} has {path.stat().st_size} bytes, but a text file of at most {MAX_BYTES} is needed. Check it."
            )
        return content.decode("utf-8")


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object."""
    text = read_text(path)
    with reading(path):
        content = parse_json(text)
    if not isinstance(content, dict):
        found = "null" if content is None else f"a {type(content).__name__}"
        raise InputError(f"{path} holds {found}, but a JSON object is needed. Check the file.")
    return content


def parse_json(text: str | bytes) -> Any:
    """Return what a JSON text holds; raises ValueError, and nothing else.

    >>> parse_json('{"a": [1, null]}')
    {'a': [1, None]}
    """
    marks: tuple[Any, ...] = (",", "[", "{") if isinstance(text, str) else (b",", b"[", b"{")
    if sum(map(text.count, marks)) > MAX_ENTRIES:
        raise ValueError(f"more than {MAX_ENTRIES} entries")
    try:
        return _bounded(json.loads(text))
    except RecursionError:
        raise ValueError(f"nested more than {MAX_DEPTH} deep") from None


def parse_toml(text: str) -> dict[str, object]:
    """Return the tables of a TOML text; raises ValueError, and nothing else."""
    if len(text) > MAX_TOML or any(line.count(".") > MAX_DOTS for line in text.splitlines()):
        raise ValueError(f"more than {MAX_TOML} characters, or {MAX_DOTS} dots in a line")
    try:
        tables: dict[str, object] = _bounded(tomllib.loads(text))
        return tables
    except RecursionError:
        raise ValueError(f"nested more than {MAX_DEPTH} deep") from None


def json_text(data: Any, indent: int | None = None) -> str:
    r"""Return JSON that any file and any terminal can hold, and that reads back as the same data.

    >>> json_text("caf\udce9 日本")
    '"caf\\udce9 日本"'
    """
    separators = (",", ":") if indent is None else None
    text = json.dumps(data, indent=indent, separators=separators, ensure_ascii=False, allow_nan=False)
    return _ESCAPED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def write_json(path: str | os.PathLike[str], data: Any) -> Path:
    """Write a file of JSON as a whole: readable lines, names as they are."""
    return write_text(path, json_text(data, indent=1) + "\n")


def write_csv(path: str | os.PathLike[str], columns: Sequence[str], rows: Iterable[Mapping[str, object]]) -> Path:
    """Write a CSV file as a whole; what a row does not have, or has as None, is an empty cell."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([csv_cell(row.get(name)) for name in columns] for row in rows)
    return write_text(path, text.getvalue())


def read_struct(path: Path, kind: type[Known], repair: str) -> Known:
    """Read a JSON file of ours; `repair` says what to do where it is not as segcal wrote it."""
    if not path.exists():
        raise ArtifactError(f"{path} is missing, but it is needed. {repair}")
    text = read_text(path)
    try:
        return msgspec.convert(parse_json(text), kind)
    except ValueError as error:
        raise ArtifactError(f"{path} is not readable ({error}), but it must be as segcal wrote it. {repair}") from None


def _bounded(content: Any) -> Any:
    """Return the content; level by level, so that no depth can exhaust the stack."""
    level: list[Any] = [[content]]
    for _ in range(MAX_DEPTH + 1):
        inside = [each for node in level for each in (node.values() if isinstance(node, dict) else node)]
        if any(type(each) is int and not -MAX_INTEGER <= each <= MAX_INTEGER for each in inside):
            raise ValueError(f"a whole number beyond {MAX_INTEGER}")
        level = [each for each in inside if isinstance(each, dict | list)]
        if not level:
            return content
    raise ValueError(f"nested more than {MAX_DEPTH} deep")


def check_plain_file(path: Path) -> None:
    """Refuse what would be waited for, for ever."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):  # whoever opens it says what is wrong
        return
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise InputError(
            f"{path} is a pipe or a device, but a file is needed. Move it away, or put the file in its place."
        )
