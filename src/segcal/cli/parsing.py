"""How arguments are explained and refused, alike in every command; the texts that they are made from; exit codes."""

import argparse
import shutil
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any, NoReturn

from segcal.errors import InputError
from segcal.names import clean

# ALARM: the command did its work, and what it found is bad news: a promise is broken, a calibrator no longer applies.
DONE, USER_ERROR, SOME_FAILED, ALARM, INTERRUPTED = 0, 2, 3, 4, 130
WIDTH = 100


class Formatter(argparse.RawDescriptionHelpFormatter):
    """Help that looks the same in every version of Python."""

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings:
            return str(action.metavar or action.dest)
        names = ", ".join(action.option_strings)
        return names if action.nargs == 0 else f"{names} {self._format_args(action, self._value(action))}"

    def _value(self, action: argparse.Action) -> str:
        if action.choices is not None and action.metavar is None:
            return "|".join(str(choice) for choice in action.choices)
        return str(action.metavar or action.dest.upper())


class Parser(argparse.ArgumentParser):
    """A parser whose refusals are one sentence."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        width = min(shutil.get_terminal_size((WIDTH, 24)).columns, WIDTH)
        self.formatter_class = partial(Formatter, max_help_position=28, width=width)
        self.allow_abbrev = False  # a script would break when an option with the same beginning is added

    def error(self, message: str) -> NoReturn:
        """Print the sentence and stop."""
        print(f"error: {clean(message)[:1000]}. See {self.prog} --help.", file=sys.stderr)
        sys.exit(USER_ERROR)


def device(text: str) -> str:
    """Return the name of a device that is there."""
    import torch  # takes seconds, and mistakes in other options should not

    try:
        kind = torch.device(text).type
    except RuntimeError:
        raise argparse.ArgumentTypeError(f"{text!r} names no device, but cpu or cuda is needed") from None
    if kind == "cuda" and not torch.cuda.is_available():
        raise argparse.ArgumentTypeError(f"{text!r} is not available on this machine, but cpu is")
    return text


def at_least_one(text: str) -> int:
    """Return a count."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no count, but a whole number of at least 1 is needed")
    return int(text)


def texts(text: str) -> list[str]:
    """Return what commas divide."""
    return text.split(",")


def numbers(text: str, between: str = ",") -> list[int]:
    """Return labels."""
    if not all(part.isdecimal() for part in text.split(between)):
        raise argparse.ArgumentTypeError(f"{text!r} are no labels, but whole numbers are needed, such as 1{between}2")
    return [int(part) for part in text.split(between)]


def regions(text: str) -> dict[str, list[int]]:
    """Return the labels of regions, such as of "whole=1+2+3,core=2+3"."""
    parts = [part.partition("=") for part in text.split(",")]
    if len({name for name, _, _ in parts}) < len(parts):
        raise argparse.ArgumentTypeError(f"{text!r} names a region twice, but each has one set of labels")
    return {name: numbers(own, "+") for name, _, own in parts}


def voxels(text: str) -> int | str:
    """Return a count of voxels, or "all"."""
    return text if text == "all" else at_least_one(text)


def object_rule(text: str) -> tuple[str, float]:
    """Return the measure and the share of "iou=0.1"."""
    name, _, share = text.partition("=")
    try:
        return name, float(share)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no rule, but iou=SHARE or overlap=SHARE is needed") from None


def named(text: str) -> tuple[str, str]:
    """Return the name and the expression of a biomarker."""
    name, equals, expression = text.partition("=")
    if not equals or not name.strip():
        raise InputError(f"--biomarker is {text!r}, but NAME=EXPRESSION is needed. Write EF=({{a@1}}-{{a@2}})/{{a@1}}.")
    return name.strip(), expression


def taus(given: Sequence[str], titles: Sequence[str]) -> float | dict[str, float]:
    """Return the Dice below which masks are bad, of ["0.8"], of ["liver=0.9"], or of both."""
    found: dict[str, float] = {}
    for text in sorted(given, key=lambda text: "=" in text):  # a number for all comes before exceptions
        name, equals, number = text.rpartition("=")
        try:
            found |= {name: float(number)} if equals else dict.fromkeys(titles, float(number))
        except ValueError:
            raise InputError(
                f"--tau is {text!r}, but a number or STRUCTURE=NUMBER is needed. Write 0.8 or liver=0.8."
            ) from None
    return found if any("=" in text for text in given) else float(given[-1])
