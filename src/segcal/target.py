"""Targets that a command may write to: one process at a time, never an input, never what somebody else wrote.

A folder is claimed by a lock on a file in it, which ends with the process that has it. Because the file is made before
the work begins, a folder that cannot be written to is known before the work begins; for a single file, something is
written beside it and removed, because permissions alone do not say whether a disk takes it.
"""

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from segcal.atomic import NAME, hold, sweep, temporary
from segcal.errors import InputError

LOCK = ".segcal-lock"
# A file's own beginning says who wrote it.
_HEAD = 4096


@contextmanager
def claim(folder: Path, lock: str = LOCK) -> Iterator[None]:
    """Keep a folder for this process, and clear away what dead ones left in it.

    It is made if it is not there; if it is empty at the end it goes again. The file `lock` is locked.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file, but a folder is needed. Name a new one.")
    made = not folder.exists()
    path = folder / lock
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = _lock(path)
    except OSError as error:
        raise _unwritable(folder, error) from None
    try:
        sweep(folder)
        yield
    finally:
        with suppress(OSError):  # the results are there, whatever becomes of the lock
            path.unlink(missing_ok=True)
            os.close(descriptor)
            if made:
                folder.rmdir()


def claim_beside(path: Path) -> AbstractContextManager[None]:
    """Keep a path that is replaced as a whole, by a lock beside it, or beside where it leads."""
    place = path.resolve()
    return claim(place.parent, f"{LOCK}-{place.name}")


def entries(folder: Path) -> list[str]:
    """Return the names of what is in a folder, if it is there, without locks and temporary folders of segcal."""
    found = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return sorted(name for name in found if name != LOCK and not NAME.fullmatch(name))


def check_file(path: Path, signature: re.Pattern[bytes], inputs: Iterable[Path] = (), overwrite: bool = False) -> None:
    """Refuse a file that must not or cannot be written, before the work that leads to it.

    Every such result begins like `signature`, so a file that does is an earlier one. Inputs are never overwritten; a
    file that is neither is, if `overwrite` says so.
    """
    if not path.parent.is_dir():
        raise InputError(f"{path} is in a folder that does not exist, but results go there. Make the folder first.")
    try:
        with temporary(path.parent):
            pass
    except OSError as error:
        raise _unwritable(path.parent, error) from None
    if not path.exists():
        return
    if not path.is_file():
        raise InputError(f"{path} is not a file, but a result is to be written there. Choose another name.")
    if any(file.exists() and file.samefile(path) for file in inputs):
        raise InputError(f"{path} is one of the inputs, but they are never overwritten. Choose another name.")
    with path.open("rb") as file:
        head = file.read(_HEAD)
    if head and not signature.match(head) and not overwrite:
        raise InputError(
            f"{path} exists and was not written by this command, but it would be lost. Choose another name, or pass "
            "overwrite=True."
        )


def _unwritable(folder: Path, error: OSError) -> InputError:
    return InputError(f"{folder} cannot be written to ({error.strerror}), but results go there. Name another folder.")


def _lock(path: Path) -> int:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        if hold(descriptor) is False:
            holder = os.read(descriptor, 20).decode("ascii", "replace").strip()
            os.close(descriptor)
            raise InputError(
                f"{path.parent} is being written to by another segcal (process {holder or 'unknown'}), but two would "
                "mix their results. Wait until it is done, or name another folder."
            )
        with suppress(FileNotFoundError):
            if os.fstat(descriptor).st_ino == path.stat().st_ino:
                os.ftruncate(descriptor, 0)
                os.write(descriptor, f"{os.getpid()}\n".encode())
                return descriptor
        os.close(descriptor)  # the one before removed it in this moment: there is a new one, or none
