"""One function over many cases: in this process or in several, with failures set apart.

Results come in the order of the ids, whatever finishes first; at most two cases a worker are under way, so memory does
not grow with the number of cases. A case that cannot be read fails alone.
"""

import multiprocessing
import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from typing import TypeVar

import torch

from segcal.cases.base import Case, CaseError, Cases
from segcal.errors import InputError

Result = TypeVar("Result")


def map_cases(
    cases: Cases,
    function: Callable[[Case], Result],
    workers: int = 1,
    failed: Callable[[CaseError], None] | None = None,
) -> Iterator[tuple[str, Result]]:
    """Yield the id and ``function(case)`` of every case.

    Args:
        cases: what to read.
        function: what to do; with several workers it must be picklable.
        workers: how many processes.
        failed: takes the error of a case that is not usable, and the rest goes on; without it the error is raised.
    """
    if workers < 1:
        raise InputError(f"workers is {workers}, but at least 1 is needed. Leave it out to work in one process.")
    outcomes = _here(cases, function) if workers == 1 else _in_processes(cases, function, workers)
    for case_id, outcome in outcomes:
        try:
            yield case_id, outcome()
        except CaseError as error:
            if failed is None:
                raise
            failed(error)


def _here(cases: Cases, function: Callable[[Case], Result]) -> Iterator[tuple[str, Callable[[], Result]]]:
    for case_id in cases.ids:
        yield case_id, lambda case_id=case_id: _one(cases, function, case_id)  # type: ignore[misc]


def _in_processes(
    cases: Cases, function: Callable[[Case], Result], workers: int
) -> Iterator[tuple[str, Callable[[], Result]]]:
    threads = max(1, (os.cpu_count() or 1) // workers)
    context = multiprocessing.get_context("spawn")  # a fork of a process with threads may hang
    pool = ProcessPoolExecutor(workers, context, initializer=torch.set_num_threads, initargs=(threads,))
    waiting: deque[tuple[str, Future[Result]]] = deque()
    try:
        for case_id in cases.ids:
            waiting.append((case_id, pool.submit(_one, cases, function, case_id)))
            if len(waiting) > 2 * workers:
                done, future = waiting.popleft()
                yield done, future.result
        while waiting:
            done, future = waiting.popleft()
            yield done, future.result
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _one(cases: Cases, function: Callable[[Case], Result], case_id: str) -> Result:
    try:
        return function(cases.read(case_id))
    except CaseError:
        raise
    except InputError as error:
        raise CaseError(case_id, str(error)) from None
