"""Worker processes leave interruptions to the process that started them, and end with it."""

import os
import signal
from multiprocessing import parent_process
from multiprocessing.connection import wait
from threading import Thread


def follow_parent() -> None:
    """Ignore Ctrl-C, which is the parent's affair, and end when the parent is gone, however that came about."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()
    if parent is not None:
        Thread(target=_wait_and_end, args=(parent.sentinel,), daemon=True).start()


def _wait_and_end(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)  # at once: nobody waits for what is being computed, and every file is written beside first
