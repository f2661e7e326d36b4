"""How a command is started: here, or as the jobs of a cluster."""

import argparse

from segcal.cli.recorded import check_parts_options


def dispatch(args: argparse.Namespace) -> int:
    """Run a command, as its options say."""
    if getattr(args, "engine", None) is not None:
        check_parts_options(args)
    code: int = args.run(args)
    return code
