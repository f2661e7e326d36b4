"""Writing beside and renaming: a kill at any moment leaves the old result or the new one, and nothing that stays.

A file that is being written lies in a folder of its own beside the target, named ``.segcal-`` and sixteen hexadecimal
digits. A marker in it says whose it is. The writer holds a lock on the marker, which ends with its process in any case.
A folder with the name, the marker and no lock is what a dead process left, and the next run removes it. So is an empty
folder, or one with an empty marker that is not locked, after a kill in the first moment. It is known by its name, whose
last six digits are a digest of the first ten, which are random. A living process whose folder goes in that moment makes
another. Nothing else is ever removed.

A file is replaced by one rename. A folder is exchanged with the old one in one step where the system can (Linux).
Elsewhere the old one is renamed aside first, and put back by the next run if this one dies in between.

A link is neither followed nor replaced, wherever it is met: what it leads to is not what was named. Nor is a file made
of a URL, which would be a folder called ``s3:``.
"""

import ctypes
import hashlib
import os
import re
import secrets
import shutil
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path

from segcal.errors import SegcalError

NAME = re.compile(r"\.segcal-[0-9a-f]{16}")
MARKER = ".owner"
SIGNATURE = b"A temporary folder of segcal. It may be removed when no segcal is running.\n"
# Where the old folder waits while the new one is put in its place.
REPLACED = ".replaced"
# Not to follow a link, nor to wait for a pipe.
PLAIN = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
# Also in capitals, and chained as in simplecache::file:.
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.:-]+:")


class NotWrittenError(SegcalError, OSError):
    """A file could not be written; the message names it."""


@contextmanager
def written(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a path of the same name to write a file or a folder to, which then takes its place; on an error nothing."""
    target = Path(path)
    check_target(target)
    with naming(target), temporary(target.parent) as beside:
        yield beside / target.name
        put(beside / target.name, target, durable=True)


def write_text(path: str | os.PathLike[str], text: str) -> Path:
    """Write a text file as a whole; lines end as they do in the text."""
    return write_bytes(path, text.encode())


def write_bytes(path: str | os.PathLike[str], content: bytes | memoryview) -> Path:
    """Write a file as a whole."""
    with written(path) as beside:
        beside.write_bytes(content)
    return Path(path)


def check_target(path: Path) -> None:
    """Refuse a link, and a URL of which a path was made."""
    if path.is_symlink():
        raise NotWrittenError(
            f"{path} is a link to {path.readlink()}, but links are neither followed nor replaced. Name its target, "
            "or remove the link."
        )
    if any(_SCHEME.fullmatch(place.name) and not place.is_dir() for place in (path, *path.parents)):
        raise NotWrittenError(f"{path} is a URL, but a path of this machine is needed. Name one, and copy the result.")


@contextmanager
def temporary(folder: Path) -> Iterator[Path]:
    """Give an empty folder inside `folder`, which is made if it is not there; it is removed at the end."""
    beside, marker = _signed(folder)
    try:
        with marker:
            yield beside
    finally:
        try:
            _remove(beside)
        except KeyboardInterrupt:  # in the middle of it: it is removed all the same
            _remove(beside)
            raise


def _signed(folder: Path) -> tuple[Path, FileIO]:
    """Make a temporary folder, and another one if a run that clears away takes it for a dead process's."""
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        beside = folder / _named(secrets.token_hex(5))
        try:
            beside.mkdir()
        except KeyboardInterrupt:  # it may be there already
            _remove(beside)
            raise
        try:
            marker = FileIO(beside / MARKER, "x")
            if hold(marker.fileno()) is not False and (beside / MARKER).exists():
                marker.write(SIGNATURE)
                return beside, marker
            marker.close()
        except FileNotFoundError:
            continue
        except BaseException:
            _remove(beside)
            raise


def put(source: Path, target: Path, durable: bool = False) -> Path:
    """Rename a file or a folder that :func:`temporary` has directly inside to its place, instead of what is there.

    `durable`: it must also survive a loss of power; for files that nobody could find to be incomplete.
    """
    check_target(target)
    if durable:
        for path in [source, *source.rglob("*")]:
            _sync(path)
    if not (source.is_dir() and target.is_dir()):
        source.replace(target)
    elif not _exchange(source, target):
        aside = source.parent / REPLACED / target.name
        aside.parent.mkdir(exist_ok=True)
        target.rename(aside)
        try:
            source.rename(target)
        except BaseException:
            aside.rename(target)
            raise
    if durable:
        _sync(target.parent)
    return target


def remove_leftovers(*folders: Path) -> None:
    """Remove the temporary folders that dead processes left directly in some folders; what they had aside goes back."""
    for folder in folders:
        with suppress(OSError):  # not there, or not ours to write to
            for beside in [path for path in folder.iterdir() if NAME.fullmatch(path.name)]:
                _remove_leftover(beside)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Let a failure to write, such as a full disk, name the file: what libraries raise often does not."""
    try:
        yield
    except NotWrittenError:
        raise
    except OSError as error:
        if isinstance(error.__context__, KeyboardInterrupt):  # libraries trip over what an interruption left open
            raise error.__context__ from None
        raise NotWrittenError(
            f"{path} could not be written ({error.strerror or str(error)[:200]}), but it is needed. "
            "Make room or choose another target, and run the command again."
        ) from None


def hold(descriptor: int) -> bool | None:
    """Lock a file that is open until it is closed; False: another process has it. None: there are no such locks."""
    if sys.platform == "win32":
        return None
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # this disk has none
        return None
    return True


def _named(random: str) -> str:
    return f".segcal-{random}{hashlib.sha256(f'segcal {random}'.encode()).hexdigest()[:6]}"


def _remove_leftover(beside: Path) -> None:
    if beside.is_symlink():
        return
    own = beside.name == _named(beside.name[len(".segcal-") : -6])
    with suppress(OSError):  # there is something in it
        beside.rmdir() if own else None
    with suppress(OSError), os.fdopen(os.open(beside / MARKER, os.O_RDWR | PLAIN), "rb") as file:
        said = file.read(len(SIGNATURE) + 1) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else None
        begun = own and said == b"" and [path.name for path in beside.iterdir()] == [MARKER]
        if not (begun or said == SIGNATURE) or not hold(file.fileno()):
            return
        aside = beside / REPLACED
        for old in () if aside.is_symlink() else aside.glob("*"):
            # Only folders are put aside, and none is put where there is anything, or a link that leads nowhere.
            if old.is_dir() and not old.is_symlink() and not os.path.lexists(beside.parent / old.name):
                old.rename(beside.parent / old.name)
        _remove(beside)


def _remove(beside: Path) -> None:
    """Remove a temporary folder; the marker last, so that a kill in between leaves what the next run knows."""
    with suppress(OSError):
        for path in [path for path in beside.iterdir() if path.name != MARKER]:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
    shutil.rmtree(beside, ignore_errors=True)


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two folders in one step; False where the system or the disk cannot."""
    if sys.platform != "linux":
        return False
    rename = getattr(ctypes.CDLL(None), "renameat2", None)
    here, swap = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return rename is not None and rename(here, os.fsencode(one), here, os.fsencode(other), swap) == 0


def _sync(path: Path) -> None:
    with suppress(OSError):  # some disks cannot, and the file is there all the same
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
