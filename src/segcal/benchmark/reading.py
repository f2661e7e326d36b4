"""Reading tables of a TOML file strictly: a key that is not known, or a value of another kind, is an error.

Texts may become paths and names, so they hold no control characters; numbers decide how often and on how much something
is done, so each has a bound.
"""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from segcal.documents import parse_toml, read_text
from segcal.errors import InputError
from segcal.names import clean

# More of anything than a benchmark has: cases, seeds, processes.
COUNT = 1 << 32
KINDS = {
    int: "a whole number",
    float: "a number",
    str: "a text",
    bool: "true or false",
    list: "a list of texts",
    dict: "a table",
}


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file."""
    if not path.is_file():
        raise InputError(f"{path} is missing, but a protocol is needed. Check the path.")
    text = read_text(path)
    try:
        return parse_toml(text)
    except ValueError as error:
        raise InputError(f"{path} is not readable as TOML ({error}). Correct it there.") from None


def read_table(table: object, where: str, kinds: Mapping[str, type | None]) -> dict[str, Any]:
    """Return the values of a table.

    Args:
        table: the table.
        where: its place in the file, for messages.
        kinds: the known keys, each with the kind of its value; None takes anything.
    """
    if not isinstance(table, dict):
        raise InputError(f"protocol has {where} = {table!r}, but a table is needed. Write [{where}] and keys below it.")
    check_keys(table, where, kinds)
    return {key: _value(value, f"{where}.{key}".lstrip("."), kinds[key]) for key, value in table.items()}


def check_keys(table: Mapping[str, Any], where: str, known: Collection[str]) -> None:
    """Refuse keys that are not known."""
    for key in table:
        if key not in known:
            place = f"{where}.{key}".lstrip(".")
            raise InputError(f"protocol has the key {place}, which is unknown. Known keys: {', '.join(known)}.")


def require(table: Mapping[str, Any], where: str, keys: Collection[str]) -> None:
    """Refuse a table that lacks a key."""
    for key in keys:
        if key not in table:
            raise InputError(f"protocol has no {where}.{key}, but it is needed. Add the key.")


def check_range(value: float, where: str, least: float, most: float = COUNT) -> None:
    """Refuse a number that is too small or too large."""
    if not value >= least:
        raise InputError(f"protocol has {where} = {value}, but at least {least:g} is needed. Raise it.")
    if value > most:
        raise InputError(f"protocol has {where} = {value}, but at most {most:g} is possible. Lower it.")


def _value(value: Any, where: str, kind: type | None) -> Any:
    if kind is None:
        return value
    fits = isinstance(value, kind) or (kind is float and isinstance(value, int))
    if kind is list:
        fits = isinstance(value, list) and all(isinstance(entry, str) for entry in value)
    for text in value if kind is list and fits else [value]:
        if isinstance(text, str) and clean(text) != text:
            raise InputError(f"protocol has {where} = {text!r}, but a text of one line is needed. Change the value.")
    if not fits or (isinstance(value, bool) and kind is not bool):
        raise InputError(f"protocol has {where} = {value!r}, but {KINDS[kind]} is needed. Change the value.")
    return value
