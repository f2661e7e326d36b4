"""A pickle machine that can only build plain data: numbers, texts, containers and numpy arrays.

nnU-Net keeps a case's properties in a pickle. Python's own unpickler calls whatever a file names, and allocates
whatever a file declares. This one walks the opcodes (as :mod:`pickletools` decodes them, which never reads beyond the
file) with a stack of its own. It knows the opcodes that plain data needs and the few names with which numpy writes
arrays, types and scalars. Any other name is refused by that name, and nothing is ever imported or called. Arrays are
built from the bytes that are in the file, after their number has been compared with shape and type.

What would stop the process without running anything is refused too. Keys and members of sets are texts, numbers and
flat tuples of these (the labels of a region, in training cases). To hash a nested key recurses in C, and one that
doubles at every level never ends. A container is filled before it is put into another one, as pickle writes plain data.
So nothing goes in circles and every depth is known, and bounded. Whole numbers have at most 64 bits.
"""

import math
import pickletools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from segcal.documents import MAX_DEPTH, reading
from segcal.errors import InputError

# Properties of training cases list sample positions of every class; that can be tens of megabytes, not more.
MAX_PICKLE_BYTES = 256 << 20
MAX_OPCODES = 1_000_000
MAX_BITS = 64
MAX_AXES = 32

_MODULES = ("numpy.core", "numpy._core")
_RECONSTRUCT = {f"{module}.multiarray._reconstruct" for module in _MODULES}
_SCALAR = {f"{module}.multiarray.scalar" for module in _MODULES}
_FROM_BUFFER = {f"{module}.numeric._frombuffer" for module in _MODULES}
_NAMES = _RECONSTRUCT | _SCALAR | _FROM_BUFFER | {"numpy.ndarray", "numpy.dtype"}


class _Shell:
    """An array or a type whose state comes later; memo entries that point to it are replaced then."""

    def __init__(self, what: str, spec: Any = None) -> None:
        self.what, self.spec = what, spec
        self.memo_keys: list[int] = []


def _simple_dtype(spec: object) -> np.dtype[Any]:
    """Return the type of plain numbers that a text names."""
    dtype = np.dtype(spec) if isinstance(spec, str) and len(spec) <= 4 else np.dtype(object)
    if dtype.kind not in "fiubc":
        raise ValueError(f"dtype {spec!r} is not a plain number")
    return dtype


def _plain_dtype(value: object) -> np.dtype[Any]:
    """Return the type that a pickle built."""
    if isinstance(value, _Shell) and value.what == "dtype":
        value = value.spec
    if not isinstance(value, np.dtype):
        raise ValueError("an array without a dtype")
    return value


def _plain_array(content: Any, dtype: np.dtype[Any], shape: Any, order: Any) -> np.ndarray:
    """Return an array over bytes that are in the file."""
    if not isinstance(shape, tuple | list) or len(shape) > MAX_AXES or not all(isinstance(n, int) for n in shape):
        raise ValueError("an array without a shape")
    sizes = tuple(shape)
    if not isinstance(content, bytes | bytearray) or min(sizes, default=0) < 0:
        raise ValueError("an array without bytes")
    if math.prod(sizes) * dtype.itemsize != len(content):
        raise ValueError(f"an array of shape {sizes} and dtype {dtype} with {len(content)} bytes")
    return np.frombuffer(content, dtype).reshape(sizes, order="F" if order == "F" else "C")


class _Name(str):
    """A name that a pickle refers to; never looked up."""


def load_plain_pickle(path: Path) -> Any:
    """Return the plain data of a pickle file; anything in it but plain data and numpy arrays is refused by name."""
    with reading(path):
        size = path.stat().st_size
        if size > MAX_PICKLE_BYTES:
            raise InputError(
                f"{path} has {size} bytes, but properties of a case are at most {MAX_PICKLE_BYTES}. nnUNetv2_ensemble "
                "before 2.8.0 wrote the probabilities there: pass properties= with the pkl files of a member."
            )
        return _Machine(path).run(path.read_bytes())


class _Machine:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        # By id, each container with its depth (kept, so that no other takes its id), and those that are inside another.
        self.depths: dict[int, tuple[Any, int]] = {}
        self.inside: set[int] = set()

    def run(self, content: bytes) -> Any:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(content)):
            if count > MAX_OPCODES:
                raise InputError(f"{self.path} has too many steps, but properties are small. Export the case again.")
            if opcode.name == "STOP":
                return self.stack.pop()
            if opcode.name in _PUSH:
                if isinstance(argument, int) and argument.bit_length() > MAX_BITS:
                    raise ValueError(f"a whole number of {argument.bit_length()} bits")
                self.stack.append(argument)
            elif opcode.name in _STEPS:
                _STEPS[opcode.name](self, argument)
            else:
                raise InputError(
                    f"{self.path} uses the pickle opcode {opcode.name}, but only plain data is read. Refused."
                )
        raise ValueError("no end")

    def to_mark(self) -> list[Any]:
        position = self.marks.pop()
        items = self.stack[position:]
        del self.stack[position:]
        return items

    def hold(self, container: Any, items: Iterable[Any]) -> Any:
        """Note that a container holds these items, and return it."""
        kept = [item for item in items if isinstance(item, list | tuple | dict | set | frozenset)]
        self.inside.update(map(id, kept))
        if id(container) in self.inside:
            raise ValueError("a container that is filled after it was put into another")
        depth = max([self.depth(container), *(1 + self.depth(item) for item in kept)])
        if depth > MAX_DEPTH:
            raise ValueError(f"nested more than {MAX_DEPTH} deep")
        self.depths[id(container)] = (container, depth)
        return container

    def depth(self, container: Any) -> int:
        return self.depths.get(id(container), (None, 0))[1]

    def push(self, container: Any) -> None:
        self.stack.append(self.hold(container, container.values() if isinstance(container, dict) else container))

    def put(self, key: int) -> None:
        self.memo[key] = self.stack[-1]
        if isinstance(self.stack[-1], _Shell):
            self.stack[-1].memo_keys.append(key)

    def name(self, module: str, name: str) -> None:
        full = f"{module}.{name}"
        if full not in _NAMES:
            raise InputError(
                f"{self.path} refers to {full}, but only plain data and numpy arrays are read from it. Refused: "
                "a pickle that names other code could run it."
            )
        self.stack.append(_Name(full))

    def reduce(self) -> None:
        arguments = self.stack.pop()
        name = self.stack.pop()
        if not isinstance(name, _Name):
            raise InputError(f"{self.path} calls something that is not a name, but only plain data is read. Refused.")
        if name in _RECONSTRUCT:
            self.stack.append(_Shell("array"))
        elif name == "numpy.dtype":
            self.stack.append(_Shell("dtype", _simple_dtype(arguments[0])))
        elif name in _SCALAR:
            self.stack.append(_plain_array(arguments[1], _plain_dtype(arguments[0]), (), "C")[()])
        elif name in _FROM_BUFFER:
            self.stack.append(_plain_array(arguments[0], _plain_dtype(arguments[1]), arguments[2], arguments[3]))
        else:
            raise InputError(f"{self.path} calls {name}, but only plain data is read from it. Refused.")

    def build(self) -> None:
        state = self.stack.pop()
        shell = self.stack.pop()
        if not isinstance(shell, _Shell):
            raise InputError(f"{self.path} sets the state of an object, but only plain data is read. Refused.")
        if shell.what == "dtype":
            if any(part is not None for part in state[2:5]):
                raise InputError(f"{self.path} has a structured dtype, but plain numbers are needed. Refused.")
            value: Any = shell.spec.newbyteorder(state[1] if state[1] in "<>=" else "=")
        else:
            value = _plain_array(state[4], _plain_dtype(state[2]), state[1], "F" if state[3] else "C")
        self.stack.append(value)
        self.memo.update(dict.fromkeys(shell.memo_keys, value))

    def append(self, items: list[Any]) -> None:
        self.hold(self.typed(list), items).extend(items)

    def set_items(self, items: list[Any]) -> None:
        self.hold(self.typed(dict), items[1::2]).update(_pairs(items))

    def add_items(self, items: list[Any]) -> None:
        self.typed(set).update(_hashable(items))

    def typed(self, kind: type) -> Any:
        if type(self.stack[-1]) is not kind:
            raise InputError(f"{self.path} fills something that is not a {kind.__name__}. The file is damaged.")
        return self.stack[-1]


def _pairs(items: list[Any]) -> dict[Any, Any]:
    return dict(zip(_hashable(items[::2]), items[1::2], strict=True))


def _hashable(keys: list[Any]) -> list[Any]:
    for key in keys:
        if not all(isinstance(part, str | int | float) for part in (key if isinstance(key, tuple) else (key,))):
            what = "nested tuple" if isinstance(key, tuple) else type(key).__name__
            raise ValueError(f"a {what} as key or member of a set, which texts, numbers and flat tuples can be")
    return keys


_PUSH = {
    "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "UNICODE", "SHORT_BINUNICODE",
    "BINUNICODE", "BINUNICODE8", "SHORT_BINBYTES", "BINBYTES", "BINBYTES8", "BYTEARRAY8",
}  # fmt: skip

_STEPS: dict[str, Callable[[_Machine, Any], object]] = {
    **dict.fromkeys(("PROTO", "FRAME"), lambda machine, _: None),
    "MARK": lambda machine, _: machine.marks.append(len(machine.stack)),
    "NONE": lambda machine, _: machine.stack.append(None),
    "NEWTRUE": lambda machine, _: machine.stack.append(True),
    "NEWFALSE": lambda machine, _: machine.stack.append(False),
    "EMPTY_LIST": lambda machine, _: machine.stack.append([]),
    "EMPTY_DICT": lambda machine, _: machine.stack.append({}),
    "EMPTY_SET": lambda machine, _: machine.stack.append(set()),
    "EMPTY_TUPLE": lambda machine, _: machine.stack.append(()),
    "LIST": lambda machine, _: machine.push(machine.to_mark()),
    "TUPLE": lambda machine, _: machine.push(tuple(machine.to_mark())),
    "TUPLE1": lambda machine, _: machine.push((machine.stack.pop(),)),
    "TUPLE2": lambda machine, _: machine.push((machine.stack.pop(-2), machine.stack.pop())),
    "TUPLE3": lambda machine, _: machine.push((machine.stack.pop(-3), machine.stack.pop(-2), machine.stack.pop())),
    "DICT": lambda machine, _: machine.push(_pairs(machine.to_mark())),
    "APPEND": lambda machine, _: machine.append([machine.stack.pop()]),
    "APPENDS": lambda machine, _: machine.append(machine.to_mark()),
    "ADDITEMS": lambda machine, _: machine.add_items(machine.to_mark()),
    "FROZENSET": lambda machine, _: machine.stack.append(frozenset(_hashable(machine.to_mark()))),
    "SETITEM": lambda machine, _: machine.set_items([machine.stack.pop(-2), machine.stack.pop()]),
    "SETITEMS": lambda machine, _: machine.set_items(machine.to_mark()),
    "MEMOIZE": lambda machine, _: machine.put(len(machine.memo)),
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT"), lambda machine, index: machine.put(index)),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), lambda machine, index: machine.stack.append(machine.memo[index])),
    "GLOBAL": lambda machine, name: machine.name(*name.split(" ", 1)),
    "STACK_GLOBAL": lambda machine, _: machine.name(str(machine.stack.pop(-2)), str(machine.stack.pop())),
    "REDUCE": lambda machine, _: machine.reduce(),
    "BUILD": lambda machine, _: machine.build(),
}
