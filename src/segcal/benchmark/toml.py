"""Reading tables of a TOML file strictly: a key that is not known, or a value of another kind, is an error.

The types of the fields of a Struct say what is known. Texts may become paths and names, so they hold no control
characters; numbers decide how often and on how much something is done, so each has a bound.
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


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file."""
    if not path.is_file():
        raise InputError(f"{path} is missing, but a protocol is needed. Check the path.")
    text = read_text(path)
    try:
        return parse_toml(text)
    except ValueError as error:
        raise InputError(f"{path} is not readable as TOML ({error}). Correct it there.") from None


def read_table(table: object, where: str, kind: type[Record]) -> Record:
    """Return a table as a Struct; `where` is its place in the file, for messages."""
    if not isinstance(table, dict):
        raise InputError(f"protocol has {where} = {table!r}, but a table is needed. Write [{where}] and keys below it.")
    try:
        return msgspec.convert(table, kind)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, InputError):  # of the Struct itself, which has said it
            raise error.__cause__ from None
        raise InputError(_sentence(str(error), table, where, kind)) from None


def _sentence(message: str, table: Any, where: str, kind: Any) -> str:
    """Return what msgspec says, such as "Expected `int` >= 1 - at `$.split.cal`", in our words."""
    what, _, place = message.partition(" - at `$")
    key = re.search(r"(unknown|required) field `(.*)`", what)
    hint: Any = kind
    path = where
    for step in re.findall(r"\.(\w+)", place):
        hint = get_type_hints(kind, include_extras=True)[step]
        kind = next((each for each in (hint, *get_args(hint)) if isinstance(each, type)), kind)
        path, table = f"{path}.{step}".lstrip("."), table[step]
    if key:
        path = f"{path}.{key[2]}".lstrip(".")
        if key[1] == "required":
            return f"protocol has no {path}, but it is needed. Add the key."
        return f"protocol has the key {path}, which is unknown. Known keys: {', '.join(kind.__struct_fields__)}."
    if "[...]" in place:  # some value of a table of whole numbers
        step = next(name for name, value in table.items() if type(value) is not int or not 1 <= value <= 1 << 62)
        path, table, place = f"{path}.{step}", table[step], ""
    if "matching regex" in what:
        number = re.search(r"\[(\d+)\]", place)
        text = table[int(number[1])] if number else table
        return f"protocol has {path} = {text!r}, but a text of one line is needed. Change the value."
    wanted = what.split("`")[1].removesuffix(" | null")
    bound = re.search(r"([<>]=?) (\S+)$", what)
    if "[" in place or wanted == "array":
        numbers = "int" in str(hint)
        needed = "whole numbers of at least 1 are needed" if numbers else "a list of texts is needed"
    elif bound is None:
        needed = f"{KINDS[wanted]} is needed"
    elif bound[1] in "<>":
        return f"protocol has {path} = {table}, but a share between 0 and 1 is needed. Try 0.95."
    elif bound[1] == ">=":
        return f"protocol has {path} = {table}, but at least {float(bound[2]):g} is needed. Raise it."
    else:
        return f"protocol has {path} = {table}, but at most {float(bound[2]):g} is possible. Lower it."
    return f"protocol has {path} = {table!r}, but {needed}. Change the value."
