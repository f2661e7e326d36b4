"""Arguments are held against annotations: what fits, what does not, and that nothing else changes."""

import inspect
import os
import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from segcal.arguments import fits, in_words, typed
from segcal.errors import InputError


@typed
def example(name: str, *more: int, level: float = 0.5, **declared: Any) -> tuple[Any, ...]:
    """Return what it is given."""
    return name, more, level, declared


@pytest.mark.parametrize(
    ("need", "right", "wrong"),
    [
        (int, [3, np.int8(3)], [True, 3.0, "3", 10**30, np.float64(3), np.array(3)]),
        (float, [3, 0.5, np.float32(1)], [True, float("nan"), float("inf"), "1", 1j]),
        (bool, [True, np.bool_(False)], [0, 1, "yes", None]),
        (str, ["", "x"], [b"x", Path("x"), "a\0b"]),
        (str | os.PathLike[str], ["x", Path("x")], [b"x", 3, Path("a\0b")]),
        (Literal["a", "b"], ["a"], ["c", ["a"], np.array(["a", "b"])]),
        (Sequence[str], [["a"], ("a",), np.array(["a"]), []], ["a", {"a"}, ["a", 1], {"a": 1}, np.array("a")]),
        (Mapping[str, int], [{"a": 1}, {}], [{"a": "b"}, {1: 1}, [("a", 1)]]),
        (Iterable[str], [["a"], {"a"}, (x for x in "ab")], ["ab", [1], 3]),
        (Callable[[str], None], [print, Path], ["print", None]),
        (type[Exception], [ValueError], [ValueError("x"), int]),
        (int | None, [None, 1], ["x"]),
        (Any, [None, "x", 3], []),
    ],
)
def test_what_fits_and_what_does_not(need, right, wrong):
    assert all(fits(value, need) for value in right)
    assert not [value for value in wrong if fits(value, need)]


@pytest.mark.parametrize(
    ("args", "named", "message"),
    [
        ((3,), {}, "name is 3, but text is needed. See help(example)."),
        (("a", 1, "b"), {}, "more is 'b', but a whole number is needed. See help(example)."),
        (("a",), {"level": "x"}, "level is 'x', but a finite number is needed. Leave it out for the default."),
        (
            ("a",),
            {"level": int},
            "level is the class int, but a finite number is needed. Leave it out for the default.",
        ),
    ],
)
def test_a_wrong_argument_is_one_sentence(args, named, message):
    with pytest.raises(InputError) as found:
        example(*args, **named)
    assert str(found.value) == message


@pytest.mark.parametrize("path", ["a" * 256, f"x/{'ä' * 128}/y", "/".join("abc" * 1100), Path("a" * 300)])
def test_a_path_that_no_disk_takes_is_one_sentence(path):
    @typed
    def opened(path: str | os.PathLike[str], name: str = "") -> None:
        """Do nothing."""

    with pytest.raises(InputError, match=r"path is .*, but a path has at most 4095 bytes and 255 in each of its names"):
        opened(path)
    opened("a" * 255 + "/" + "b" * 255, name="a" * 5000)


def test_everything_else_is_as_before():
    assert example("a", 1, 2, level=1, other="x") == ("a", (1, 2), 1, {"other": "x"})
    assert list(inspect.signature(example).parameters) == ["name", "more", "level", "declared"]
    assert example.__doc__ == "Return what it is given."
    assert pickle.loads(pickle.dumps(example)) is example
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'name'"):
        example()


def test_a_number_has_the_same_bounds_wherever_it_is_asked_for():
    @typed
    def work(workers: int) -> int:
        return workers

    assert work(1) == 1
    with pytest.raises(InputError, match=r"workers is 0, but a number between 1 and 1024 is needed. See help\(work\)"):
        work(0)


def test_an_annotation_is_said_in_words():
    assert in_words(Mapping[str, int | Sequence[int]]) == (
        "a dictionary from text to a whole number or a list, each entry a whole number,"
    )
