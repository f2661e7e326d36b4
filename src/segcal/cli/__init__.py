"""The command line; :mod:`segcal.cli.commands` lists the commands and says in which file each one is."""

import os
import sys
from collections.abc import Callable, Sequence

from segcal.cli.commands import COMMANDS, DONE, INTERRUPTED, USER_ERROR, make_parser
from segcal.errors import SegcalError
from segcal.names import clean_lines

__all__ = ["COMMANDS", "main", "make_parser"]


def main(argv: Sequence[str] | None = None, ready: Callable[[], object] = lambda: None) -> None:
    """Run one command and exit with its code; a user's mistake is one sentence on stderr.

    `ready` is called when all that the command needs is imported and its options are understood.
    """
    code = USER_ERROR
    try:
        args = make_parser().parse_args(argv)
        from segcal.cli.console import warnings_in_one_line  # with the libraries, which help and mistakes do without
        from segcal.cli.dispatch import dispatch

        ready()
        with warnings_in_one_line():
            done = dispatch(args)
        sys.stdout.flush()
        code = done
    except BrokenPipeError:  # such as `segcal check ... | head`: the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = DONE
    except (SegcalError, OSError) as error:  # the latter: a full disk, a folder that may not be written
        from segcal.cli.console import in_options, sentence

        print(f"error: {in_options(clean_lines(sentence(error)))}", file=sys.stderr)
    except RuntimeError as error:
        if "Symlink loop" not in str(error):  # of pathlib, whatever path it was
            raise
        text = f"a link leads to itself ({clean_lines(str(error))}), but a target is needed. Remove the link."
        print(f"error: {text}", file=sys.stderr)
    except MemoryError:
        print("error: the memory of this machine is not enough. Use a larger one, or smaller cases.", file=sys.stderr)
    except KeyboardInterrupt:
        print("interrupted: what is written is complete; run the command again to go on", file=sys.stderr)
        code = INTERRUPTED
    sys.exit(code)
