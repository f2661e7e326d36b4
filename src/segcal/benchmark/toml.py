"""Reading tables of a TOML file strictly: a key that is not known, or a value of another kind, is an error.

The types of the fields of a Struct say what is known. Texts may become paths and names, so they hold no control
characters. Numbers decide how often and on how much something is done, so each has a bound.
"""

import re
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypeVar, get_args, get_type_hints

import msgspec
from msgspec import Meta, Struct

from segcal.documents import parse_toml, read_text
from segcal.errors import InputError
from segcal.names import UNSAFE

# More of anything than a benchmark has: cases, seeds, processes.
COUNT = 1 << 32
Text: TypeAlias = Annotated[str, Meta(pattern=rf"\A[^{UNSAFE}]*\Z")]
Number: TypeAlias = int | float  # a whole number stays one, in results too
Count: TypeAlias = Annotated[int, Meta(ge=0, le=COUNT)]
AtLeastOne: TypeAlias = Annotated[int, Meta(ge=1, le=COUNT)]
KINDS = {"int": "a whole number", "int | float": "a number", "str": "a text", "bool": "true or false"}
KINDS |= {"float": "a number", "object": "a table"}

Record = TypeVar("Record", bound=Struct)


def read_toml(path: Path) -> dict[str, object]:
    """Read a TOML file."""
    if not path.is_file():
        raise InputError(f"{path} is missing, but a protocol is needed. Check the path.")
    text = read_text(path)
    try:
        return parse_toml(text)
    except ValueError as error:
        raise InputError(f"{path} is not readable as TOML ({error}). Correct it there.") from None


def read_table(table: object, where: str, kind: type[Record]) -> Record:
    """Return a table as a Struct; `where` is its position in the file, for messages."""
    if not isinstance(table, dict):
        raise InputError(
            f"protocol has {where} = {table!r}, but a table is needed. Write {_heading(where)} and keys below it."
        )
    try:
        return msgspec.convert(table, kind)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, InputError):  # of the Struct itself, which has said it
            raise error.__cause__ from None
        raise InputError(_sentence(str(error), table, where, kind)) from None


def _heading(where: str) -> str:
    """Return how TOML heads a table: one of a list has no number there.

    >>> _heading("fit"), _heading("pipelines[0]")
    ('[fit]', '[[pipelines]]')
    """
    return f"[[{where.partition('[')[0]}]]" if "[" in where else f"[{where}]"


def _sentence(message: str, table: Any, where: str, kind: Any) -> str:
    """Return what msgspec says, such as "Expected `int` >= 1 - at `$.split.cal`", in our words."""
    what, _, place = message.partition(" - at `$")
    path, hint = where, kind
    for step in re.findall(r"\.(\w+)", place):
        hint = get_type_hints(kind, include_extras=True)[step]
        kind = next((each for each in (hint, *get_args(hint)) if isinstance(each, type)), kind)
        path, table = f"{path}.{step}".lstrip("."), table[step]
    if "[...]" in place:  # some value of a table of whole numbers
        step = next(name for name, value in table.items() if type(value) is not int or not 1 <= value <= 1 << 62)
        path, table, place = f"{path}.{step}", table[step], ""
    if key := re.search(r"(unknown|required) field `(.*)`", what):
        path = f"{path}.{key[2]}".lstrip(".")
        if key[1] == "required":
            return f"protocol has no {path}, but it is needed. Add the key."
        return f"protocol has the key {path}, which is unknown. Known keys: {', '.join(kind.__struct_fields__)}."
    if "matching regex" in what:
        number = re.search(r"\[(\d+)\]", place)
        table, needed = table[int(number[1])] if number else table, "a text of one line is needed. Change the value"
        return f"protocol has {path} = {table!r}, but {needed}."
    return f"protocol has {path} = {table!r}, but {_needed(what, '[' in place, hint)}."


def _needed(what: str, inside: bool, hint: object) -> str:
    """Return what a value should be, from "Expected `kind` >= limit", of the value itself or of one inside a list."""
    wanted = what.split("`")[1].removesuffix(" | null")
    if inside or wanted == "array":
        numbers = "whole numbers of at least 1 are" if "int" in str(hint) else "a list of texts is"
        return f"{numbers} needed. Change the value"
    bound = re.search(r"([<>]=?) (\S+)$", what)
    if bound is None:
        return f"{KINDS[wanted]} is needed. Change the value"
    limit = f"{float(bound[2]):g}"
    return {
        ">=": f"at least {limit} is needed. Raise it",
        "<=": f"at most {limit} is possible. Lower it",
    }.get(bound[1], "a share between 0 and 1 is needed. Try 0.95")
