"""Commands as data: which there are, the records that declare one, and the parser, alike for all of them.

No library is imported here: the file of a command, and all that it needs, is imported when the command is called.
"""

import argparse
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeAlias

from segcal.names import clean
from segcal.version import __version__

# ALARM: the command did its work, and what it found is bad news: a promise is broken, a calibrator no longer applies.
DONE, USER_ERROR, SOME_FAILED, ALARM, INTERRUPTED = 0, 2, 3, 4, 130
# Options of an older name, which are taken with a warning for one release.
RENAMED = {"--pool": "--pooling"}
WIDTH = 100
# The file of each command, which has its record under its name in capitals; and one line about it.
COMMANDS = {
    "demo": ("benchmark", "calibrate three embedded tasks and write a report, in minutes"),
    "check": ("check", "check a folder of predictions and labels for problems"),
    "fit": ("fit", "fit a calibrator; by default the best one that keeps the mask"),
    "apply": ("calibrated", "write calibrated predictions in the format of the input"),
    "evaluate": ("evaluate", "metrics before and after calibration, with intervals"),
    "audit": ("calibrator", "check the promises of a calibrator on its parameters and on data"),
    "trust": ("trust", "expected Dice and volume of each structure, with intervals and a review list"),
    "margins": ("masks", "masks without probabilities: inner and outer masks with stated coverage"),
    "decide": ("masks", "masks by a rule: best expected Dice, bounded recall or precision, volume"),
    "objects": ("trust", "connected components with the probability that each is real"),
    "monitor": ("calibrated", "detect unusual cases and drift in a stream, without labels"),
    "adapt": ("calibrated", "adapt to class frequencies of another site, without labels"),
    "convert": ("calibrated", "convert any format to the segcal store: pooled, half the size, same masks"),
    "export": ("calibrator", "export to ONNX: the calibrator, or a network with its calibrator"),
    "view": ("calibrated", "files for viewers: NIfTI per class, BIDS, iso-contours, polygons, DICOM SEG"),
    "nnunet": ("nnunet", "nnU-Net v2: fit from the folds of a model, predict with calibration"),
    "benchmark": ("benchmark", "run the protocol of the paper on your cases"),
    "report": ("evaluate", "one offline HTML page of results"),
    "card": ("calibrator", "a calibration card: data, promises, metrics by subgroup, limits"),
    "merge": ("dispatch", "join the shards of a command"),
}


class Role(Enum):
    """The role of an argument that is a path."""

    CASES = "a folder of cases, or its URL"
    BESIDE = "a folder of files that belong to cases"
    CALIBRATOR = "a folder of a calibrator"
    READ = "anything else that is read"
    TABLE = "a CSV file that is read, or a pattern"
    FILE = "a file that is written"
    FOLDER = "a folder that is written to"


# What a path is; a function of all options where they decide.
Names: TypeAlias = Role | Callable[[argparse.Namespace], Role | None]


class Argument(NamedTuple):
    """An argument of a command: its names, what argparse is told, what it names, and whether it decides results."""

    names: tuple[str, ...]
    declared: Mapping[str, Any]
    role: Names | None
    decides: bool

    @property
    def dest(self) -> str:
        """The attribute that has its value."""
        name = next((name for name in self.names if name.startswith("--")), self.names[0])
        return name.lstrip("-").replace("-", "_")


def argument(names: str, about: str, role: Names | None = None, decides: bool = True, **declared: Any) -> Argument:
    """Return an argument; its type is Path if it has a role, or that of a number that is its default."""
    known: dict[str, object] = {"help": about}
    if type(declared.get("default")) in (int, float):
        known["type"] = type(declared["default"])
    if role is not None and role is not Role.TABLE:
        known |= {"type": Path, "metavar": "FILE" if role in (Role.FILE, Role.READ) else "FOLDER"}
    return Argument(tuple(names.split()), known | declared, role, decides)


def flag(name: str, about: str, decides: bool = True) -> Argument:
    """Return an option without a value."""
    return argument(name, about, None, decides, action="store_true", default=False)


class Command:
    """A command: what runs it and returns the exit code, its texts in the help, and its arguments.

    Args:
        run: takes a :class:`segcal.cli.call.Call`.
        usage: None to have it made of the arguments.
        groups: more arguments, by the heading that they have in the help.
        files: patterns of the files that it puts into its folder, each with the option that names it elsewhere.
        before_another: whether another command follows it, after "--".
    """

    def __init__(
        self,
        run: Callable[..., int],
        usage: str | None,
        description: str,
        epilog: str,
        *arguments: Argument,
        groups: Mapping[str, Sequence[Argument]] | None = None,
        files: Mapping[str, str] | None = None,
        before_another: bool = False,
    ) -> None:
        self.run, self.texts = run, {"usage": usage, "description": description, "epilog": epilog}
        self.arguments, self.groups = arguments, groups or {}
        self.all_arguments = [*arguments, *(one for group in self.groups.values() for one in group)]
        self.files, self.before_another = files or {"*": ""}, before_another


def command_of(name: str) -> Command:
    """Return a command; what it needs is imported."""
    found: Command = getattr(import_module(f"segcal.cli.{COMMANDS[name][0]}"), name.upper())
    return found


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


def _renamed(text: str) -> str:
    """Return an option under its name of today."""
    old, equals, value = text.partition("=")
    if old not in RENAMED:
        return text
    print(f"warning: {old} is deprecated. Write {RENAMED[old]}.", file=sys.stderr)
    return f"{RENAMED[old]}{equals}{value}"


class _CommandParser(Parser):
    """The parser of one command, which is declared, once, when it is the one that was called."""

    command: Command | None = None

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        if self.declare().before_another:
            own = args.index("--") if "--" in args else len(args)
            self.set_defaults(made_by=args[own + 1 :])
            args = args[:own]
        found, unknown = super().parse_known_args([_renamed(text) for text in args], namespace)
        if unknown:  # refused here, and not by the parser of all commands: the sentence names this command's help
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown

    def declare(self) -> Command:
        if self.command is None:
            self.command = command_of(self.prog.split()[-1])
            vars(self).update(self.command.texts)
            for one in self.command.arguments:
                self.add_argument(*one.names, **one.declared)
            for title, arguments in self.command.groups.items():
                group = self.add_argument_group(title)
                for one in arguments:
                    group.add_argument(*one.names, **one.declared)
            self.set_defaults(merged=None)
        return self.command


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = Parser(
        prog="segcal",
        description="Calibrated confidence for trained segmentation models, without changing their masks.",
        epilog=(
            "segcal COMMAND --help explains a command, with an example.\n\n"
            "exit codes: 0 done; 2 user error; 3 done, but some cases failed and are listed; 4 alarm (audit: a\n"
            "promise is broken; monitor: the calibrator no longer applies); 130 interrupted: written files are\n"
            "complete, and the same command resumes"
        ),
    )
    parser.add_argument("--version", action="version", version=f"segcal {__version__}")
    commands: Any = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=_CommandParser)
    for name, (_, about) in COMMANDS.items():
        commands.add_parser(name, help=about)
    return parser


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
