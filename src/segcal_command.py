"""What the command ``segcal`` starts: one line for Ctrl-C from the first moment.

The package takes a while to import, and an interruption then would end in a traceback from wherever it was. So this
module stands outside of it and imports nothing of it until it has said what an interruption means. Nothing is written
while importing, so the process can end at once.

What is imported stays. Looking for garbage in it would take a fifth of the start, and time again on every later search,
so that nothing is searched before all is there, and that is left out from then on.
"""

import gc
import os
import signal
import sys
from types import FrameType

INTERRUPTED = 130


def main() -> None:
    """Import the command line and run it."""
    usual = signal.getsignal(signal.SIGINT)
    if usual is signal.default_int_handler:  # and not ignored, as in the background of a script
        signal.signal(signal.SIGINT, _end)
    gc.disable()
    from segcal.cli import main as run_command

    def ready() -> None:
        from segcal.memory import reuse_memory  # imported long since

        reuse_memory()
        gc.freeze()
        gc.enable()
        signal.signal(signal.SIGINT, usual)

    try:
        run_command(ready=ready)
    finally:  # all is written and said: clearing away is not interrupted
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _end(_number: int, _frame: FrameType | None) -> None:
    sys.stderr.write("interrupted: nothing was begun; run the command again\n")
    sys.stderr.flush()
    os._exit(INTERRUPTED)  # an exception would be caught, or turned into another, inside the libraries
