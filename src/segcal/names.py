"""Names that somebody else chose, made safe to show and to keep.

File names, class names and messages that quote them end on terminals, in results, in CSV files and in names of new
files. A name may hold anything: terminal sequences, marks that turn the direction of writing, line separators, bytes
that are no UTF-8. Python keeps those bytes as lone surrogates, which cannot be written to a file. Each such character
is replaced by its bytes in the form ``%1B``, everything else stays as it is. What is clean stays the same, so cleaning
twice does no harm.

A spreadsheet takes a cell that begins with ``= + - @`` for a formula; a quote before it makes it a text.
"""

import re
from collections.abc import Iterable, Sequence

UNSAFE = "\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
_LONGEST_WORD = 500  # of a message; most paths are shorter
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def clean(text: str) -> str:
    r"""Return the text without characters that a terminal obeys or that no file can hold.

    >>> clean("a\x1b[31m.npy"), clean("caf\udce9"), clean("naïve 日本")
    ('a%1B[31m.npy', 'caf%E9', 'naïve 日本')
    """
    return re.sub(f"[{UNSAFE}]", lambda found: "".join(f"%{byte:02X}" for byte in _bytes(found[0])), text)


def clean_lines(text: str) -> str:
    """Return a text of several lines, each of them clean."""
    return "\n".join(map(clean, text.split("\n")))


def clean_message(text: str) -> str:
    """Return a clean message in which a word that nobody reads to its end is shown in short.

    >>> clean_message(f"{'a' * 5000} is not there")
    'aaaaaaaaaaaaaaaaaaaa...aaaaaaaaaaaaaaaaaaaa is not there'
    """
    return re.sub(rf"\S{{{_LONGEST_WORD},}}", lambda found: f"{found[0][:20]}...{found[0][-20:]}", clean(text))


def class_titles(names: Iterable[str] | None, count: int) -> tuple[str, ...]:
    """Return the names of so many classes, numbers where they have none.

    >>> class_titles(None, 2)
    ('class 0', 'class 1')
    """
    return tuple(f"class {number}" for number in range(count)) if names is None else tuple(names)


def file_names(names: Sequence[str], *taken: str) -> list[str]:
    """Return names of classes for files, as BIDS allows them: letters and digits.

    A number stands where that leaves nothing or too few, or a name that is taken.

    >>> file_names(["left ventricle", "?", "?", "rows"], "rows")
    ['leftventricle', 'class1', 'class2', 'class3']
    """
    plain = [re.sub(r"[^A-Za-z0-9]", "", name) for name in names]
    usable = [bool(name) and plain.count(name) == 1 and name not in taken for name in plain]
    return [name if usable[number] else f"class{number}" for number, name in enumerate(plain)]


def csv_cell(value: object) -> object:
    """Return the cell of a CSV file: a text is clean and no formula, numbers have spaces between, anything else stays.

    >>> csv_cell("=1+1"), csv_cell(-0.5), csv_cell([1.5, 2])
    ("'=1+1", -0.5, '1.5 2')
    """
    if isinstance(value, list):
        return " ".join(f"{each:.6g}" for each in value)
    if not isinstance(value, str):
        return value
    return f"'{clean(value)}" if value.startswith(_FORMULA) else clean(value)


def _bytes(letter: str) -> bytes:
    escaped = 0xDC80 <= ord(letter) <= 0xDCFF  # a byte of a file name that is no UTF-8
    return letter.encode("utf-8", "surrogateescape" if escaped else "surrogatepass")
