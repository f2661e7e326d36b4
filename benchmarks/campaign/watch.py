"""One step of a trial in a process of its own: what it asks the system for is recorded, and nothing leaves the box.

An audit hook, which nobody can take out again, sees what Python opens, renames, removes, connects and starts:

- a write outside of the box is refused and recorded; so is every address, and every program that would be started;
- code that was data (it holds :data:`TOKEN`, as every payload of the campaign does) is recorded when it is executed;
- events in the file system of the box are counted, and at one of them the step may be killed or interrupted.

Memory, processor time and the size of files are limited; the parent limits the seconds (:func:`run_step`).
"""

import atexit
import json
import multiprocessing.util
import os
import re
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import segcal_command

# In every payload of the campaign; code that has it among its constants was data.
TOKEN = "campaign_payload"
MEMORY, FILE_SIZE = 3 << 29, 1 << 28
CPU_SECONDS, WALL_SECONDS = 60, 120
# What is written outside of the box and harms nobody: caches of compiled code and what a process has of its own.
HARMLESS = re.compile(r"/dev/|/proc/|.*/__pycache__(/|$)")
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# Of the events that change the file system: which arguments are paths.
CHANGES = {
    "os.rename": (0, 1), "os.remove": (0,), "os.mkdir": (0,), "os.rmdir": (0,), "os.truncate": (0,), "os.link": (1,),
    "os.symlink": (1,), "shutil.rmtree": (0,), "os.chmod": (0,), "os.utime": (0,),
}  # fmt: skip
STARTS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "pty.spawn")
ADDRESSES = ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto", "urllib.Request")
# What no pickle may name: numba's own, in its cache, name types alone.
POWERS = re.compile(
    r"(os|posix|sys|subprocess|shutil|runpy|code)\b|builtins\.(eval|exec|compile|open|getattr|__import__)"
)


@dataclass
class Step:
    """One command or call.

    Attributes:
        run: the words after ``segcal``, or a function without arguments.
        targets: what may be written: each path, and all below it.
        replaces: files of the user's that the command was told to replace.
        beside: other commands that run at the same time.
        event: the number of the event at which `signal` comes; None for never.
    """

    run: Sequence[str] | Callable[[], Any]
    targets: Sequence[Path] = ()
    replaces: Sequence[Path] = ()
    beside: Sequence[Sequence[str]] = ()
    event: int | None = None
    signal: int = signal.SIGKILL

    def words(self) -> str:
        """Return the step as somebody would type it."""
        if callable(self.run):
            return str(getattr(self.run, "words", self.run))
        kill = "" if self.event is None else f"  # {signal.Signals(self.signal).name} at event {self.event}"
        return "segcal " + " ".join(repr(word) if re.search(r"[^\w./=:-]", word) else word for word in self.run) + kill


@dataclass
class Outcome:
    """What came of a step: how its process ended, what it printed, and the records of the hook."""

    code: int | None
    signal: int | None
    out: str
    err: str
    records: list[tuple[str, str]] = field(default_factory=list)
    events: int = 0
    seconds: float = 0.0
    killed: bool = False


def run_step(step: Step, root: Path, seconds: float = WALL_SECONDS) -> Outcome:
    """Run a step, and what runs beside it, in processes of their own; return what came of the step."""
    commands = [step, *(Step(run) for run in step.beside)]
    logs = root.with_name(root.name + "-logs")
    logs.mkdir(exist_ok=True)
    begun = time.monotonic()
    children = [_fork(one, root, logs / str(number)) for number, one in enumerate(commands)]
    ends = [_wait(child, begun + seconds) for child in children]
    found = [_outcome(logs / str(number), *end) for number, end in enumerate(ends)]
    found[0].seconds = time.monotonic() - begun
    for other in found[1:]:
        found[0].records += other.records
        if other.code not in (0, 2, 3, 4):
            found[0].records.append(("beside", f"ended with {other.code or other.signal}: {other.err[-400:]}"))
    return found[0]


def _fork(step: Step, root: Path, log: Path) -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child:
        return child
    code = 99
    try:
        os.setsid()
        code = _inside(step, root, log)
    except BaseException:  # of the campaign itself
        traceback.print_exc()
    finally:
        os._exit(code)


def _wait(child: int, deadline: float) -> tuple[int | None, int | None, bool]:
    """Return the exit code or the signal of a child; past the deadline it is killed with all that it started."""
    pause = 0.002
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            return (code, None, False) if code >= 0 else (None, -code, False)
        if time.monotonic() > deadline:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return None, signal.SIGKILL, True
        time.sleep(pause)
        pause = min(2 * pause, 0.05)


def _outcome(log: Path, code: int | None, number: int | None, killed: bool) -> Outcome:
    out, err = (log.with_suffix(end).read_text("utf-8", "backslashreplace") for end in (".out", ".err"))
    lines = [json.loads(line) for line in log.with_suffix(".records").read_text("utf-8").splitlines()]
    events = max((int(about) for name, about in lines if name == "events"), default=0)
    records = [(name, about) for name, about in lines if name != "events"]
    return Outcome(code, number, out, err, records, events, killed=killed)


def _inside(step: Step, root: Path, log: Path) -> int:
    """Set the limits and the hook, run, and return the exit code."""
    for number, end in ((1, ".out"), (2, ".err")):
        os.dup2(os.open(log.with_suffix(end), os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    records = os.open(log.with_suffix(".records"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.chdir(root / "work")
    os.environ.update(HOME=str(root / "home"), TMPDIR=str(root / "tmp"))
    tempfile.tempdir = None
    sys.stdout = open(1, "w", encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    pages = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (pages + MEMORY, pages + MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 5))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_SIZE, FILE_SIZE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    atexit._clear()  # of the parent, as what is to be done when its objects go
    weakref.finalize._registry.clear()
    weakref.finalize._registered_with_atexit = False
    atexit.register(multiprocessing.util._exit_function)  # which removes what is to go with the process
    signal.signal(signal.SIGINT, signal.default_int_handler)
    hook = Hook(root, records, step.event, step.signal)
    sys.addaudithook(hook)
    _watch_urls(hook)
    code = _call(step.run)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    hook.on = False
    hook.record("events", str(hook.events))
    return code


def _call(run: Sequence[str] | Callable[[], Any]) -> int:
    """Run a command as its entry point does, or a function; a traceback is exit code 1, as Python has it."""
    try:
        with warnings.catch_warnings():
            if callable(run):
                run()
                return 0
            sys.argv = ["segcal", *run]
            segcal_command.main()
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
    except BaseException as error:
        if callable(run) and _is_own(error):
            print(f"error: {error}", file=sys.stderr)
            return 2
        traceback.print_exc()
        return 1
    return 0


def _is_own(error: BaseException) -> bool:
    from segcal.errors import SegcalError

    return isinstance(error, SegcalError)


def _watch_urls(hook: "Hook") -> None:
    """Record every URL that fsspec is asked for, also those that need no network."""
    try:
        import fsspec
    except ImportError:
        return
    known = fsspec.core.url_to_fs

    def url_to_fs(url: str, **more: Any) -> Any:
        hook.record("url", str(url))
        return known(url, **more)

    fsspec.core.url_to_fs = url_to_fs


class Hook:
    """The audit hook of one step."""

    def __init__(self, root: Path, records: int, event: int | None, number: int) -> None:
        self.on, self.events, self._own = True, 0, os.getpid()
        self._root, self._records, self._event, self._signal = str(root), records, event, number

    def record(self, name: str, about: str) -> None:
        """Write one record, at once: a step may be killed."""
        os.write(self._records, (json.dumps([name, about]) + "\n").encode())

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Look at one event."""
        if self.on:
            self._files(event, arguments)
            self._powers(event, arguments)

    def _files(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            self._opened(*arguments)
        elif event in CHANGES:
            self._changed([arguments[index] for index in CHANGES[event]], event)
        elif event == "fcntl.flock":
            self._count()

    def _powers(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in ADDRESSES:
            self._addressed(event, arguments)
        elif event in STARTS and not _is_server(arguments):
            self.record("program", f"{event} {arguments!r}"[:300])
            raise PermissionError("the campaign starts no programs")
        elif event == "exec" and TOKEN in repr(arguments[0].co_consts):
            self.record("code", f"executed {arguments[0].co_consts!r}"[:300])
        elif event == "pickle.find_class" and POWERS.match(f"{arguments[0]}.{arguments[1]}"):
            self.record("code", f"a pickle named {arguments[0]}.{arguments[1]}")

    def _opened(self, path: Any, mode: Any, flags: Any) -> None:
        writes = any(letter in mode for letter in "wax+") if isinstance(mode, str) else (flags or 0) & WRITES
        if writes and not isinstance(path, int):
            self._changed([path], "open")

    def _changed(self, paths: Sequence[Any], event: str) -> None:
        for path in paths:
            if isinstance(path, int):
                continue
            name = os.path.abspath(os.fsdecode(path))  # noqa: PTH100
            if f"{name}/".startswith(self._root + "/"):
                self._count()
            elif not HARMLESS.match(name):
                self.record("outside", f"{event} {name}"[:300])
                raise PermissionError(1, "the campaign refuses it", name)

    def _count(self) -> None:
        self.events += 1
        if self.events == self._event and os.getpid() == self._own:
            self.record("events", str(self.events))
            os.kill(self._own, self._signal)

    def _addressed(self, event: str, arguments: tuple[Any, ...]) -> None:
        about = arguments[1] if event in ("socket.connect", "socket.sendto") else arguments[0]
        if isinstance(about, str | bytes) and event == "socket.connect":
            return  # a socket in the file system: worker processes
        self.record("address", f"{event} {about!r}"[:300])
        raise OSError(101, "the campaign has no network")


def _is_server(arguments: tuple[Any, ...]) -> bool:
    """Whether a program is Python's own server or tracker of worker processes."""
    return "multiprocessing." in repr(arguments)
