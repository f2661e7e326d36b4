"""The command line: one file per command, listed here."""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from segcal import __version__
from segcal.cli.console import DONE, INTERRUPTED, USER_ERROR
from segcal.cli.dispatch import dispatch
from segcal.cli.engine import DIVIDED, engine_options
from segcal.cli.parsing import Parser
from segcal.cli.reading import common_options, reading_options
from segcal.cli.wording import in_options, warnings_in_one_line
from segcal.errors import SegcalError
from segcal.names import clean_lines

# Each module has texts (`ABOUT`), adds options (`declare`), and runs (`run`), which returns the exit code.
NAMES = ("demo", *DIVIDED, "monitor", "convert", "export", "view", "nnunet", "benchmark", "report", "merge")
COMMANDS = {name: import_module(f"segcal.cli.{name}") for name in NAMES}
ALONE = ("demo", "benchmark", "export", "nnunet", "merge")  # read no predictions of their own


class _Command(Parser):
    """One command; its options are declared, once, when it is the one that was called."""

    adds: tuple[Any, ...] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        return super(_Command, self.declare()).parse_known_args(args, namespace)

    def declare(self) -> "_Command":
        for add in self.adds:
            add(self)
        self.adds = ()
        return self


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = Parser(
        prog="segcal",
        description="Honest confidence for trained segmentation models, without changing their masks.",
        epilog=(
            "segcal COMMAND --help explains a command, with an example.\n\n"
            "exit codes: 0 done; 2 a mistake that you can repair, in one sentence; 3 done, but some cases failed and "
            "are\nlisted; 130 interrupted: what is written is complete, and the same command goes on from there"
        ),
    )
    parser.add_argument("--version", action="version", version=f"segcal {__version__}")
    commands: Any = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=_Command)
    for name, module in COMMANDS.items():
        (command := commands.add_parser(name, **module.ABOUT)).set_defaults(run=module.run)
        adds = (module.declare, engine_options) if name in DIVIDED else (module.declare,)
        command.adds = adds if name in ALONE else (reading_options, common_options, *adds)
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command and exit with its code; a user's mistake is one sentence on stderr."""
    code = USER_ERROR
    try:
        args = make_parser().parse_args(argv)
        with warnings_in_one_line():
            done = dispatch(args)
        sys.stdout.flush()
        code = done
    except BrokenPipeError:  # such as `segcal check ... | head`: the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = DONE
    except (SegcalError, OSError) as error:  # the latter: a full disk, a folder that may not be written
        print(f"error: {in_options(clean_lines(str(error)))}", file=sys.stderr)
    except MemoryError:
        print("error: the memory of this machine is not enough. Use a larger one, or smaller cases.", file=sys.stderr)
    except KeyboardInterrupt:
        print("interrupted: what is written is complete; run the command again to go on", file=sys.stderr)
        code = INTERRUPTED
    sys.exit(code)
