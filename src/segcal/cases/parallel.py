"""One function over many cases: in this process or in several, with failures set apart.

Results come in the order of the ids, whatever finishes first. At most two cases a worker are under way, so memory does
not grow with the number of cases. A case that cannot be read fails alone. An interruption (Ctrl-C) lets the cases that
are under way finish and starts no other.

In one process, one thread reads the next case and another writes the last one while a case is worked on. At most one
more case is in memory for each. Cases are read, and written, one after the other. An error is raised when it is the
turn of the case, so only the time differs.

An :class:`Engine` takes the place of the number of workers where other machines work on cases, or results are already
there.
"""

import multiprocessing
import os
import pickle
import signal
import sys
import tempfile
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Generic, Self, TypeAlias, TypeVar

import torch

from segcal.cases.base import Case, CaseError, Cases, naming_case
from segcal.cases.profile import Profile, profile_at
from segcal.errors import InputError
from segcal.memory import reuse_memory
from segcal.parent import follow_parent

Read = TypeVar("Read")
Result = TypeVar("Result")
# The id of a case, and what gives its result or raises what went wrong.
Outcome: TypeAlias = tuple[str, Callable[[], Any]]


class Engine(ABC):
    """A way to work on cases.

    Attributes:
        partial: whether it yields only those that are its own, in the order of the ids.
        folder: where it keeps results that are put together later; None if it keeps none.
    """

    partial: bool = False
    folder: Path | None = None

    @abstractmethod
    def outcomes(self, ids: Sequence[str], function: Callable[[str], Any], about: str) -> Iterable[Outcome]:
        """Yield the outcome of ``function(id)`` for every id; `about` names what is done, the same every time."""

    def fresh(self) -> "Workers":
        """Return what works on cases and keeps nothing: for passes over the same cases that differ."""
        return self


Workers: TypeAlias = int | Engine


class Failures:
    """Passes errors of cases on to `failed`, and keeps the first: where nothing is left, it says why."""

    def __init__(self, failed: Callable[[CaseError], None] | None) -> None:
        self._failed = failed
        self.first: CaseError | None = None
        self.take = None if failed is None else self._take

    def _take(self, error: CaseError) -> None:
        assert self._failed is not None
        self.first = self.first or error
        self._failed(error)

    def refuse_all(self, count: int) -> InputError:
        """Return what is raised when all of so many cases failed."""
        return InputError(f"all {count} cases failed, but at least one is needed. First: {self.first}")


def map_cases(
    cases: Cases,
    function: Callable[[Case], Result],
    workers: Workers = 1,
    failed: Callable[[CaseError], None] | None = None,
    seen: Callable[[Profile], None] | None = None,
) -> Iterator[tuple[str, Result]]:
    """Yield the id and ``function(case)`` of every case; with several workers the function must be picklable.

    `failed` takes the error of a case that is not usable, and the rest goes on; without it the error is raised. `seen`
    takes the profile of each case on the way.
    """
    read = _ReadAnd(cases, function, seen is not None)
    about = " ".join(filter(None, (_name_of(function), cases.pooling, cases.aspect)))
    for case_id, (result, own) in map_ids(cases.ids, read, workers, failed, about):
        if seen is not None and own is not None:
            seen(own)
        yield case_id, result


def map_ids(
    ids: Sequence[str],
    function: Callable[[str], Result],
    workers: Workers = 1,
    failed: Callable[[CaseError], None] | None = None,
    about: str | None = None,
) -> Iterator[tuple[str, Result]]:
    """Yield the id and ``function(id)`` of every id; the other arguments are those of :func:`map_cases`.

    `about` names what is done, for an engine that keeps results; the name of the function if it is not given.
    """
    for case_id, outcome in outcomes_of(ids, function, workers, about or _name_of(function)):
        try:
            yield case_id, outcome()
        except CaseError as error:
            if failed is None:
                raise
            failed(error)
        except BrokenProcessPool:
            raise InputError(
                f"a worker process ended while case {case_id!r} was under way, but nobody asked it to. In a script, "
                'put what starts workers below `if __name__ == "__main__":`; else the machine may have run out of '
                "memory: use fewer workers."
            ) from None


def outcomes_of(
    ids: Sequence[str], function: Callable[[str], Any], workers: Workers, about: str = ""
) -> Iterable[Outcome]:
    """Return the outcomes of a function of ids, in their order; the arguments are those of :func:`map_ids`."""
    if isinstance(workers, Engine):
        return workers.outcomes(ids, function, about)
    if workers < 1:
        raise InputError(f"workers is {workers}, but at least 1 is needed. Leave it out to work in one process.")
    if workers > 1 and len(ids) > 1:
        return _in_own_processes(ids, function, min(workers, len(ids)))
    # A single thread has none to spare: two workers are to be twice as fast as one.
    if isinstance(function, _ReadAnd) and function.cases.in_threads and torch.get_num_threads() > 1 and len(ids) > 1:
        return ahead(ids, partial(on_case, function.cases.checked), partial(_on_read, function))
    return ((name, partial(on_case, function, name)) for name in ids)


def _in_own_processes(ids: Sequence[str], function: Callable[[str], Any], workers: int) -> Iterator[Outcome]:
    with Processes(workers) as processes:
        yield from processes.outcomes(ids, function, "")


def _name_of(function: Callable[..., Any]) -> str:
    while isinstance(function, partial):
        function = function.func
    return getattr(function, "__qualname__", type(function).__qualname__)


class Processes(Engine):
    """Processes of this machine, started when the first pass needs them and used for all: a context that ends them."""

    def __init__(self, number: int) -> None:
        self._number, self._passes = number, 0
        self._held = ExitStack()

    def __enter__(self) -> Self:
        self._place = self._held.enter_context(tempfile.TemporaryDirectory(prefix="segcal-workers-"))
        threads = max(1, (os.cpu_count() or 1) // self._number)
        self._pool = ProcessPoolExecutor(
            self._number, process_context(), initializer=_start_worker, initargs=(threads,)
        )
        self._held.callback(self._pool.shutdown, wait=True, cancel_futures=True)
        return self

    def __exit__(self, *what: Any) -> None:
        self._held.__exit__(*what)

    def outcomes(self, ids: Sequence[str], function: Callable[[str], Any], about: str) -> Iterator[Outcome]:
        """Yield outcomes in the order of the ids; at most two cases a worker are under way."""
        self._passes += 1
        # Once for all cases: it knows the files of every one. Pickled here and not by the pool: torch would send every
        # tensor as an open file of shared memory.
        sent = Path(self._place, f"pass-{self._passes}")
        sent.write_bytes(pickle.dumps(function))
        waiting: deque[tuple[str, Future[bytes]]] = deque()
        try:
            for case_id in ids:
                with _interrupts_waiting():  # this may start a process
                    waiting.append((case_id, self._submit(str(sent), case_id)))
                if len(waiting) > 2 * self._number:
                    done, future = waiting.popleft()
                    yield done, partial(_unpacked, future)
            while waiting:
                done, future = waiting.popleft()
                yield done, partial(_unpacked, future)
        finally:
            for _, future in waiting:
                future.cancel()

    def _submit(self, sent: str, case_id: str) -> Future[bytes]:
        try:
            return self._pool.submit(_one_packed, sent, case_id)
        except BrokenProcessPool as error:  # one ended meanwhile: said when it is the turn of the case
            broken: Future[bytes] = Future()
            broken.set_exception(error)
            return broken


@contextmanager
def kept_processes(workers: Workers) -> Iterator[Workers]:
    """Give workers for several passes over cases, so that processes are started once."""
    if isinstance(workers, Engine) or workers < 2:
        yield workers
        return
    with Processes(workers) as processes:
        yield processes


def process_context() -> multiprocessing.context.BaseContext:
    """Return how processes are started, so that they import as little as can be; what they compute is the same.

    A process without other threads is forked: on Linux, if numpy was told to use one (``OMP_NUM_THREADS=1``). The fork
    of one with threads may hang. There a server imports what is imported here of segcal, once, and is forked.
    """
    if sys.platform == "linux" and len(list(Path("/proc/self/task").iterdir())) == 1:
        return multiprocessing.get_context("fork")
    return server_context()


def server_context(*others: str) -> multiprocessing.context.BaseContext:
    """Return how processes are started where there are threads; the server, which is started, imports `others` too."""
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*others, *(name for name in sys.modules if name.split(".")[0] == "segcal")])
    from multiprocessing import forkserver, resource_tracker  # which not every system has

    resource_tracker.ensure_running()  # its start would let interruptions through again
    try:
        with _interrupts_waiting():  # they inherit it
            forkserver.ensure_running()
    except OSError as error:
        if "AF_UNIX" not in str(error):
            raise
        where = f"{tempfile.gettempdir()} is the folder for temporary files, but too long for a process to be reached"
        raise InputError(f"{where} ({error}). Set TMPDIR to a shorter path, or use one process.") from None
    return context


@contextmanager
def _interrupts_waiting() -> Iterator[None]:
    """Hold Ctrl-C back while processes are started: they inherit it, and stay quiet even before they can be told."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start_worker(threads: int) -> None:
    follow_parent()
    reuse_memory()
    torch.set_num_threads(threads)


def _one_packed(sent: str, case_id: str) -> bytes:
    return pickle.dumps(on_case(_function(sent), case_id))


@lru_cache(maxsize=1)  # of a worker, which does one pass after the other
def _function(sent: str) -> Callable[[str], Any]:
    function: Callable[[str], Any] = pickle.loads(Path(sent).read_bytes())
    return function


def _unpacked(future: Future[bytes]) -> Any:
    return pickle.loads(future.result())


class _ReadAnd(Generic[Result]):
    """Reads a case and does something to it, and looks at it if that is asked for."""

    def __init__(self, cases: Cases, function: Callable[[Case], Result], look: bool) -> None:
        self.cases, self._function, self._look = cases, function, look

    def __call__(self, case_id: str) -> tuple[Result, Profile | None]:
        """Read the case too."""
        return self.work(self.cases.checked(case_id))

    def work(self, case: Case) -> tuple[Result, Profile | None]:
        """Do what is done to a case that was read."""
        result = self._function(case)  # first: it refuses what cannot be looked at
        return result, profile_at(case, self.cases.decision) if self._look else None


def _on_read(function: _ReadAnd[Result], case_id: str, case: Case) -> tuple[Result, Profile | None]:
    return on_case(lambda _: function.work(case), case_id)


def on_case(function: Callable[[str], Result], case_id: str) -> Result:
    """Return what a function gives for a case; what is wrong with the case is a :class:`CaseError`."""
    try:
        with naming_case(case_id):
            return function(case_id)
    except (MemoryError, torch.OutOfMemoryError):
        raise CaseError(
            case_id, "it needs more memory than there is, but a case is worked on as a whole. Use a larger machine."
        ) from None


def ahead(
    ids: Sequence[str], read: Callable[[str], Read], work: Callable[[str, Read], Result]
) -> Iterator[tuple[str, Callable[[], Result]]]:
    """Yield every id with what gives its result, to be called once, in this order.

    >>> [outcome() for _, outcome in ahead(["a", "b"], str.upper, lambda name, read: name + read)]
    ['aA', 'bB']
    """
    coming: list[Future[Read]] = []
    with ThreadPoolExecutor(1, thread_name_prefix="segcal-reader") as reader:

        def outcome(number: int) -> Result:
            own = coming.pop() if coming else reader.submit(read, ids[number])
            wait([own])
            if number + 1 < len(ids):
                coming.append(reader.submit(read, ids[number + 1]))
            return work(ids[number], own.result())

        try:
            for number, name in enumerate(ids):
                yield name, lambda number=number: outcome(number)  # type: ignore[misc]
        finally:
            for each in coming:
                each.cancel()


def behind(begun: Iterable[tuple[str, Callable[[], Result]]]) -> Iterator[tuple[str, Callable[[], Result]]]:
    """Have a thread finish every case while the next one is begun; yield every id with what gives its result.

    >>> [outcome() for _, outcome in behind((name, name.upper) for name in "ab")]
    ['A', 'B']
    """
    last: tuple[str, Future[Result]] | None = None
    with ThreadPoolExecutor(1, thread_name_prefix="segcal-writer") as writer:
        cases = iter(begun)
        while True:
            try:
                case = next(cases, None)
            except Exception:
                if last is not None:
                    last[1].result()  # what went wrong before is told before
                raise
            own = None if case is None else (case[0], writer.submit(case[1]))
            if last is not None:
                yield last[0], last[1].result
            if own is None:
                return
            last = own
