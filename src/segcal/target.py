"""Targets that a command may write to: one process at a time, never an input, never what somebody else wrote.

A folder is claimed by a lock on a file in it, which ends with the process that has it. Because the file is made before
the work begins, a folder that cannot be written to is known before the work begins. For a single file, something is
written beside it and removed, because permissions alone do not say whether a disk takes it.

A lock is always a new file: a dead process's is removed, and nothing is written into a file that is there. What
is no lock of ours, by its content or because it is a link, is refused.
"""

import errno
import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from segcal.atomic import NAME, PLAIN, check_target, hold, remove_leftovers, temporary
from segcal.errors import InputError

LOCK = ".segcal-lock"
# A file's own beginning says who wrote it.
_HEAD = 4096
# What is in a lock: the process, or nothing yet.
_HOLDER = re.compile(rb"(\d{1,10}\n)?")


@contextmanager
def claim(folder: Path, lock: str = LOCK) -> Iterator[None]:
    """Keep a folder for this process, and clear away what dead ones left in it.

    It is made if it is not there; if it is empty at the end it goes again. The file `lock` is locked.
    """
    made = make_folder(folder)
    path = folder / lock
    try:
        descriptor = _lock(path)
    except OSError as error:
        raise _unwritable(folder, error) from None
    try:
        remove_leftovers(folder)
        yield
    finally:
        with suppress(OSError):  # the results are there, whatever becomes of the lock
            _unlock(path, descriptor)
            if made:
                folder.rmdir()


def make_folder(folder: Path) -> bool:
    """Make a folder for results unless it is there; return whether it was made."""
    if folder.is_dir():
        return False
    if folder.exists():
        raise InputError(f"{folder} is a file, but a folder is needed. Name a new one.")
    check_target(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(folder, error) from None
    return True


def claim_beside(path: Path) -> AbstractContextManager[None]:
    """Keep a path that is replaced as a whole, by a lock beside it, or beside where it leads."""
    place = path.resolve()
    return claim(place.parent, f"{LOCK}-{place.name}")


def entries(folder: Path) -> list[str]:
    """Return the names of what is in a folder, if it is there, without locks and temporary folders of segcal."""
    found = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return sorted(name for name in found if name != LOCK and not NAME.fullmatch(name))


def check_apart(target: Path, inputs: Iterable[Path]) -> None:
    """Refuse a target that is one of the inputs, however it is spelt, or a file that lies in one of them."""
    place, is_file = target.resolve(), target.is_file()
    for path in inputs:
        files = path.rglob("*") if is_file and path.is_dir() else ()
        if path.resolve() == place or (is_file and any(_same(each, target) for each in (path, *files))):
            raise InputError(f"{target} is one of the inputs, but they are never overwritten. Choose another name.")


def _same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:  # a link that leads nowhere, a name that is too long
        return False


def check_file(path: Path, signature: re.Pattern[bytes], inputs: Iterable[Path] = (), overwrite: bool = False) -> None:
    """Refuse a file that must not or cannot be written, before the work that leads to it; clear away beside it.

    Every such result begins like `signature`, so a file that does is an earlier one. Inputs are never overwritten; a
    file that is neither is, if `overwrite` says so.
    """
    if not path.parent.is_dir():
        raise InputError(f"{path} is in a folder that does not exist, but results go there. Make the folder first.")
    check_target(path)
    remove_leftovers(path.parent)
    try:
        with temporary(path.parent):
            pass
    except OSError as error:
        raise _unwritable(path.parent, error) from None
    if not path.exists():
        return
    if not path.is_file():
        raise InputError(f"{path} is not a file, but a result is to be written there. Choose another name.")
    check_apart(path, inputs)
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
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | PLAIN, 0o666)
        except FileExistsError:
            _remove_dead(path)
            continue
        if hold(descriptor) is not False and _is_at(descriptor, path):
            os.write(descriptor, f"{os.getpid()}\n".encode())
            return descriptor
        os.close(descriptor)  # another process took it for a dead one's in this moment


def _remove_dead(path: Path) -> None:
    """Remove the lock of a process that is gone; refuse what is not a lock, and that of a process that is not."""
    try:
        descriptor = os.open(path, os.O_RDWR | PLAIN)
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK, errno.EISDIR, errno.ENXIO):
            raise _foreign(path) from None
        raise
    try:
        facts = os.fstat(descriptor)
        holder = os.read(descriptor, 12) if stat.S_ISREG(facts.st_mode) and facts.st_nlink <= 1 else b"another's"
        if not _HOLDER.fullmatch(holder):
            raise _foreign(path)
        if hold(descriptor) is False:
            raise InputError(
                f"{path.parent} is being written to by another segcal (process {holder.decode().strip() or 'unknown'}),"
                " but two would mix their results. Wait until it is done, or name another folder."
            )
    except BaseException:
        os.close(descriptor)
        raise
    _unlock(path, descriptor)


def _unlock(path: Path, descriptor: int) -> None:
    try:
        if _is_at(descriptor, path):
            path.unlink(missing_ok=True)
    finally:
        os.close(descriptor)


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:
        return False


def _foreign(path: Path) -> InputError:
    return InputError(
        f"{path} is not a lock of segcal, but nothing else may have its name. Move it away, or name another folder."
    )
