"""Folders that are somewhere else: URLs that fsspec knows (s3, gs, http, file, ...), seen through a folder here.

The local folder has the names of the remote files, without content. A file is fetched as a whole when its case is read,
and released a few cases later. So neither disk nor memory grows with the number of cases. What is fetched has the size
that the other side says, or is an error. An object that another one takes the place of is seen by its stamp.

Fetched files are in a cache of fsspec, in a new folder that only this user and this process can use. It is removed with
the process. The URL is part of the object, which goes to other processes and machines, and each fetches by itself. No
file says where something comes from. Names that would lead out of the cache are refused.
"""

import os
import re
import shutil
import tempfile
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from multiprocessing.util import Finalize
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from segcal.cases.records import content_digest
from segcal.documents import json_text
from segcal.errors import InputError, load_extra

SCHEMES = ("s3", "gs", "gcs", "http", "https", "file", "memory", "abfs", "az")
# Files of a folder that are here at a time, and how often one is asked for that does not come.
KEPT = 4
TRIES = 3

# An object among results that are not all there yet.
UNFINISHED = ".segcal-upload"

Result = TypeVar("Result")


def url_of(path: str | Path) -> str | None:
    """Return the URL that a path is, also where a path was made of it; None for a path of this machine.

    >>> url_of(Path("s3://bucket/a")), url_of("file:///tmp/a"), url_of("a/b")
    ('s3://bucket/a', 'file:///tmp/a', None)
    """
    found = re.match(r"([A-Za-z][A-Za-z0-9+.:-]+):/+(.*)", str(path))  # a single letter is a drive of Windows
    if found is None or (found[1] not in SCHEMES and Path(path).exists()):
        return None
    if found[1] not in SCHEMES:
        raise InputError(
            f"{found[1]}://{found[2]} is a URL of an unknown kind, but one of {', '.join(SCHEMES)} is needed. Use one "
            "of these, or copy the folder to this machine."
        )
    return f"{found[1]}://{'/' if found[1] in ('file', 'memory') else ''}{found[2]}"


def here(path: str | Path) -> tuple[Path, "Remote | None"]:
    """Return the folder of a path and, for a URL, what fetches: the folder stands for it until this process ends."""
    url = url_of(path)
    if url is None:
        return Path(path), None
    remote = Remote(url)
    place = _own_folder()
    for name, facts in remote.listing().items():
        if facts["type"] == "directory":
            (place / name).mkdir()
        else:
            (place / name).touch()
    return place, remote


def _own_folder() -> Path:
    """Return a new folder that no other user can read; it goes when this process ends, a worker's too."""
    place = tempfile.mkdtemp(prefix="segcal-remote-")
    Finalize(None, shutil.rmtree, (place, True), exitpriority=0)
    return Path(place)


class Remote:
    """One folder that is somewhere else."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._kept: OrderedDict[str, Path] = OrderedDict()
        self._listed: dict[str, dict[str, object]] | None = None
        self._process, self._cached = os.getpid(), None

    def __getstate__(self) -> dict[str, str]:  # what is kept here is not there
        return {"url": self.url}

    def __setstate__(self, state: dict[str, str]) -> None:
        self.__init__(state["url"])  # type: ignore[misc]

    def listing(self) -> dict[str, dict[str, object]]:
        """Return what is in the folder, by name; asked for once."""
        if self._listed is None:
            # Listings that were kept from before would hide what has changed.
            found = self._asked(lambda fs: fs.ls(fs._strip_protocol(self.url), detail=True, refresh=True), self.url)
            names = ((str(facts["name"]).rstrip("/").rpartition("/")[2], facts) for facts in found)
            self._listed = {name: facts for name, facts in names if name and not name.startswith(".")}
        if not self._listed:
            raise InputError(f"{self.url} has no files, but one per case is needed. Check the URL.")
        return self._listed

    def fetched(self, name: str) -> Path:
        """Return the file or folder of a case, which is here from now on, and lets an older one go."""
        if self._process != os.getpid():  # a fork: what was fetched before it is not its own
            self._kept, self._process, self._cached = OrderedDict(), os.getpid(), None
        if name not in self._kept:
            url = f"{self.url}/{name}"
            self._kept[name] = self._asked(lambda fs: _fetch(self._cache(fs), url), url)
        self._kept.move_to_end(name)
        while len(self._kept) > KEPT:
            _remove(self._kept.popitem(last=False)[1])
        return self._kept[name]

    def _cache(self, fs: Any) -> Any:
        """Return a cache in which files have the names that they have there."""
        if self._cached is None:
            make = load_extra("fsspec", "cloud", "URLs need").filesystem
            place, inside = str(_own_folder()), partial(_inside, fs._strip_protocol(self.url).rstrip("/"))
            self._cached = make(
                "simplecache", fs=fs, cache_storage=place, cache_mapper=inside, skip_instance_cache=True
            )
        return self._cached

    def stamp(self, name: str) -> str:
        """Return a text that changes when the object of a name does: what the other side says of it."""
        facts = self.listing().get(name, {})
        known = ("size", "ETag", "etag", "LastModified", "last_modified", "mtime", "mtime_ns", "md5Hash", "created")
        return repr([str(facts[key]) for key in known if key in facts])

    def size(self, name: str) -> int:
        """Return the size of an object."""
        return int(str(self.listing().get(name, {}).get("size") or 0))

    def _asked(self, ask: Callable[[Any], Result], url: str) -> Result:
        """Ask, again if there is no answer; in the end raise an error that says what is wrong."""
        fsspec = load_extra("fsspec", "cloud", "URLs need")
        reason = ""
        for _ in range(TRIES):
            try:
                return ask(fsspec.core.url_to_fs(self.url)[0])
            except InputError:
                raise
            except FileNotFoundError:
                raise InputError(f"{url} is missing, but it is needed. Check the URL.") from None
            except PermissionError:
                raise InputError(f"{url} may not be read, but it is needed. Check your credentials.") from None
            except ImportError as error:
                raise InputError(f"{url} needs a library ({error}), but it is not installed. Install it.") from None
            except Exception as error:  # whatever a network or a library for it raises
                reason = _reason(error)
        raise InputError(
            f"{url} could not be read in {TRIES} attempts ({reason}), but it is needed. Try again later, or copy the "
            "folder to this machine."
        )


def _inside(root: str, path: str) -> str:
    """Return the path of a file in the cache: the one that it has in its folder, and never another one."""
    name = PurePosixPath(path.removeprefix(f"{root}/"))
    if name.is_absolute() or ".." in name.parts or str(name) == path:
        raise InputError(f"{path} has a name that leads out of {root}, but a plain one is needed. Rename it.")
    return str(name)


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:160]}"


def _fetch(cache: Any, url: str) -> Path:
    """Bring a file or folder into the cache, all of it."""
    name = cache.fs._strip_protocol(url)
    place = Path(cache.storage[-1], cache._mapper(name))
    facts = cache.fs.info(name)
    found = cache.fs.find(name, detail=True) if facts["type"] == "directory" else {name: facts}
    try:
        for each, known in found.items():
            local = Path(cache.storage[-1], cache._mapper(each))
            local.parent.mkdir(parents=True, exist_ok=True)
            cache.open(each).close()
            size, came = known.get("size"), local.stat().st_size
            if size is not None and came != int(size):
                raise OSError(f"{came} of {size} bytes came")
    except BaseException:
        _remove(place)
        raise
    return place


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):  # in use, on some systems: it goes with the process
            path.unlink()


def upload(folder: Path, url: str) -> None:
    """Bring all files of a folder to a URL, as new objects; if one fails, those that came before it go again.

    Until all are there another object says which they are, so that after a kill the same results go on, and no others.
    """
    fsspec = load_extra("fsspec", "cloud", "URLs need")
    fs, root = fsspec.core.url_to_fs(url.rstrip("/"))
    files = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    found = json_text({name: content_digest(path) for name, path in files.items()}).encode()
    mark = f"{root}/{UNFINISHED}"
    done: list[str] = []
    try:
        begun = _names(fs, root)
        if begun - {UNFINISHED} and (UNFINISHED not in begun or fs.cat_file(mark) != found):
            raise InputError(f"{url} holds other results, but nothing there is overwritten. Name a new target.")
        fs.makedirs(root, exist_ok=True)
        done.append(mark)
        fs.pipe_file(mark, found)
        for name, path in files.items():
            target = f"{root}/{name}"
            fs.makedirs(target.rpartition("/")[0], exist_ok=True)
            done.append(target)
            fs.put_file(str(path), target)
        fs.rm_file(mark)
    except InputError:
        raise
    except Exception as error:  # whatever a network or a library for it raises
        for target in reversed(done):
            try:
                fs.rm_file(target)
            except Exception:  # the first failure is the one to tell
                continue
        raise InputError(
            f"{url} could not be written ({_reason(error)}), but results go there, and nothing was left there. Check "
            "it, and run the command again."
        ) from None


def check_new(url: str) -> None:
    """Refuse a URL under which there is something that is no beginning of ours: nothing there is overwritten."""
    fsspec = load_extra("fsspec", "cloud", "URLs need")
    try:
        fs, root = fsspec.core.url_to_fs(url.rstrip("/"))
        there = _names(fs, root)
    except Exception as error:  # whatever a network or a library for it raises
        raise InputError(f"{url} does not answer ({_reason(error)}), but results go there. Check the URL.") from None
    if there and UNFINISHED not in there:
        raise InputError(f"{url} holds results already, but nothing there is overwritten. Name a new target.")


def _names(fs: Any, root: str) -> set[str]:
    found = fs.ls(root, detail=False, refresh=True) if fs.exists(root) else []
    return {str(name).rstrip("/").rpartition("/")[2] for name in found}
