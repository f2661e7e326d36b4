"""The command line: one file a command, listed here."""

import argparse
import sys
from collections.abc import Sequence
from types import ModuleType

from segcal import __version__
from segcal.cli import apply, audit, check, convert, evaluate, fit
from segcal.cli.console import INTERRUPTED, USER_ERROR
from segcal.errors import SegcalError

# Each module has NAME-independent `add(commands)`, which declares the command, and `run(args)`, which returns the code.
COMMANDS: dict[str, ModuleType] = {
    "check": check,
    "fit": fit,
    "apply": apply,
    "evaluate": evaluate,
    "audit": audit,
    "convert": convert,
}


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="segcal",
        description="Honest confidence for trained segmentation models, without changing their masks.",
        epilog="Exit codes: 0 done, 2 a mistake that you can repair, 3 done but some cases failed, 130 interrupted.",
    )
    parser.add_argument("--version", action="version", version=f"segcal {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, module in COMMANDS.items():
        command = module.add(commands, name)
        command.set_defaults(run=module.run)
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command and exit with its code; a user's mistake is one sentence on stderr."""
    args = make_parser().parse_args(argv)
    try:
        code = args.run(args)
    except SegcalError as error:
        print(f"error: {error}", file=sys.stderr)
        code = USER_ERROR
    except KeyboardInterrupt:
        print("interrupted: what is written is complete; run the command again to go on", file=sys.stderr)
        code = INTERRUPTED
    sys.exit(code)
