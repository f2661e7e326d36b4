"""One function over many cases: in this process or in several, with failures set apart.

Results come in the order of the ids, whatever finishes first; at most two cases a worker are under way, so memory does
not grow with the number of cases. A case that cannot be read fails alone. An interruption (Ctrl-C) lets the cases that
are under way finish and starts no other.

Where something else than processes of this machine works on cases, or results are already there, an :class:`Engine`
takes the place of the number of workers.
"""

import multiprocessing
import os
import pickle
import signal
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias, TypeVar

import torch

from segcal.cases.base import Case, CaseError, Cases, naming_case
from segcal.cases.glance import Glance, glance_at
from segcal.errors import InputError
from segcal.parent import follow_parent

Result = TypeVar("Result")
# The id of a case, and what gives its result or raises what went wrong.
Outcome: TypeAlias = tuple[str, Callable[[], Any]]


class Engine(ABC):
    """What works on cases; `partial`: it yields only those that are its own, in the order of the ids."""

    partial: bool = False

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
    seen: Callable[[Glance], None] | None = None,
) -> Iterator[tuple[str, Result]]:
    """Yield the id and ``function(case)`` of every case; with several workers the function must be picklable.

    `failed` takes the error of a case that is not usable, and the rest goes on; without it the error is raised. `seen`
    takes a glance at each case on the way.
    """
    read = partial(_read_and, cases, function, seen is not None)
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
        return _in_processes(ids, function, workers)
    return ((name, partial(on_case, function, name)) for name in ids)


def _name_of(function: Callable[..., Any]) -> str:
    while isinstance(function, partial):
        function = function.func
    return getattr(function, "__qualname__", type(function).__qualname__)


def _in_processes(ids: Sequence[str], function: Callable[[str], Any], workers: int) -> Iterator[Outcome]:
    threads = max(1, (os.cpu_count() or 1) // workers)
    context = multiprocessing.get_context("spawn")  # a fork of a process with threads may hang
    pool = ProcessPoolExecutor(min(workers, len(ids)), context, initializer=_start_worker, initargs=(threads,))
    # Pickled here and not by the pool: torch would send every tensor as an open file of shared memory.
    packed = pickle.dumps(function)
    waiting: deque[tuple[str, Future[bytes]]] = deque()
    try:
        for case_id in ids:
            with _interrupts_waiting():  # this may start a process
                waiting.append((case_id, pool.submit(_one_packed, packed, case_id)))
            if len(waiting) > 2 * workers:
                done, future = waiting.popleft()
                yield done, partial(_unpacked, future)
        while waiting:
            done, future = waiting.popleft()
            yield done, partial(_unpacked, future)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


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
    torch.set_num_threads(threads)


def _one_packed(function: bytes, case_id: str) -> bytes:
    return pickle.dumps(on_case(pickle.loads(function), case_id))


def _unpacked(future: Future[bytes]) -> Any:
    return pickle.loads(future.result())


def _read_and(
    cases: Cases, function: Callable[[Case], Result], look: bool, case_id: str
) -> tuple[Result, Glance | None]:
    case = cases.checked(case_id)
    result = function(case)  # first: it refuses what cannot be looked at
    return result, glance_at(case) if look else None


def on_case(function: Callable[[str], Result], case_id: str) -> Result:
    """Return what a function gives for a case; what is wrong with the case is a :class:`CaseError`."""
    try:
        with naming_case(case_id):
            return function(case_id)
    except (MemoryError, torch.OutOfMemoryError):
        raise CaseError(
            case_id, "it needs more memory than there is, but a case is worked on as a whole. Use a larger machine."
        ) from None
