"""Cases on the workers of Dask: those of a scheduler somewhere, or processes that are started here.

Dask does what an engine must: it sends, moves, retries, and gives the cases of a worker that is lost to another one.
Results are taken in the order of the ids, and at most a few cases per worker are under way. So results depend neither
on the number of workers nor on their failures, and memory does not grow with the number of cases.
"""

import logging
import pickle
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.metadata import version
from typing import Any, Self

import torch

from segcal.cases.base import CaseError
from segcal.cases.parallel import Engine, Outcome, on_case, server_context
from segcal.errors import InputError, load_extra

# How often a case is tried again that failed for a reason that is not its own.
RETRIES = 2
SECONDS = 10
# What Dask does to watch workers of its own accord, for a dashboard that is not there: a tenth of a core.
QUIET = {
    "distributed.worker.profile.enabled": False,
    "distributed.admin.system-monitor.interval": "10s",
    "distributed.admin.tick.interval": "1s",
}
# So many bundles of cases each worker should have, and so many cases one may have.
BUNDLES, MOST_TOGETHER = 32, 8


class DaskEngine(Engine):
    """Works on cases by Dask; a context, at whose end processes that were started here end.

    Args:
        scheduler: the address of a scheduler, such as ``tcp://login:8786``; None to start processes here.
        workers: how many processes, if they are started here.
    """

    def __init__(self, scheduler: str | None = None, workers: int = 1) -> None:
        self._scheduler, self._number = scheduler, workers

    def __enter__(self) -> Self:
        distributed = load_extra("distributed", "cluster", "engine dask needs")
        try:
            if self._scheduler is None:
                self._cluster = _start_workers(distributed, self._number)
                self.client = distributed.Client(self._cluster)
            else:
                self._cluster = None
                self.client = distributed.Client(self._scheduler, timeout=SECONDS, set_as_default=False)
        except (OSError, ValueError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0][:120]
            raise InputError(
                f"scheduler {self._scheduler} does not answer ({reason}), but a Dask scheduler is needed there. Start "
                "one with `dask scheduler`, or leave the address out to start workers here."
            ) from None
        self._check_versions()
        return self

    def __exit__(self, *what: Any) -> None:
        self.client.close()
        if self._cluster is not None:
            self._cluster.close()

    def outcomes(self, ids: Sequence[str], function: Callable[[str], Any], about: str) -> Iterator[Outcome]:
        """Send cases to workers; yield what comes back in the order of the ids."""
        # Unpacked once per worker; made anew, from the bytes that the scheduler has, where it is lost with one.
        shared = self.client.submit(pickle.loads, pickle.dumps(function), pure=False)
        waiting: deque[tuple[Sequence[str], Any]] = deque()
        try:
            for some in self._bundles(ids):
                waiting.append((some, self.client.submit(_guarded, shared, some, retries=RETRIES, pure=False)))
                if len(waiting) > 2 * self._threads():
                    yield from _outcomes(*waiting.popleft())
            while waiting:
                yield from _outcomes(*waiting.popleft())
        finally:
            if self.client.status == "running":  # and not left by an interruption
                self.client.cancel([future for _, future in waiting])

    def _bundles(self, ids: Sequence[str]) -> Iterator[Sequence[str]]:
        """Yield cases that go together: sending costs as much as a small case, but all workers are to end together."""
        size = min(MOST_TOGETHER, max(1, len(ids) // (BUNDLES * self._threads())))
        return (ids[start : start + size] for start in range(0, len(ids), size))

    def _threads(self) -> int:
        return max(1, sum(self.client.nthreads().values()))

    def _check_versions(self) -> None:
        own = version("segcal")
        for worker, found in self.client.run(version, "segcal").items():
            if found != own:
                raise InputError(
                    f"worker {worker} has segcal {found}, but this is {own}, and results must be of one version. "
                    "Install the same on all workers."
                )


def _start_workers(distributed: Any, number: int) -> Any:
    """Start processes here, as forks of one that has imported what they need: see :func:`server_context`."""
    method = server_context("distributed.nanny", "segcal.scale.dask_engine").get_start_method()
    dask = load_extra("dask", "cluster", "engine dask needs")
    with dask.config.set({"distributed.worker.multiprocessing-method": method, **QUIET}):
        return distributed.LocalCluster(
            n_workers=number,
            threads_per_worker=1,
            processes=True,
            dashboard_address=None,
            scheduler_kwargs={"dashboard_address": ":0"},  # a port that nobody has: several may run on one machine
            silence_logs=logging.CRITICAL,
            preload=[*dask.config.get("distributed.worker.preload"), __name__],
        )


def dask_setup(worker: Any) -> None:
    """Keep a worker that was started here from writing; its results and errors come back.

    Dask calls this in each one. An interruption would otherwise write how every worker lost its scheduler.
    """
    logging.disable(logging.CRITICAL)


def _guarded(function: Callable[[str], Any], ids: Sequence[str]) -> list[Any]:
    """Return the result of every case, or its own error: that one is not tried again."""
    torch.set_num_threads(1)
    found: list[Any] = []
    for case_id in ids:
        try:
            found.append(on_case(function, case_id))
        except CaseError as error:
            found.append(error)
    return found


def _outcomes(ids: Sequence[str], future: Any) -> Iterator[Outcome]:
    try:
        found = future.result()  # of all of them
    except InputError:
        raise
    except Exception as error:  # whatever a worker raised, or its end
        reason = (str(error).splitlines() or [""])[0][:200]
        raise InputError(
            f"case {ids[0]!r} could not be worked on ({type(error).__name__}: {reason}), though it was tried "
            f"{RETRIES + 1} times, but all cases are needed. Look at the logs of the workers, and run it again."
        ) from None
    for case_id, result in zip(ids, found, strict=True):
        yield case_id, partial(_value, result)


def _value(result: Any) -> Any:
    if isinstance(result, CaseError):
        raise result
    return result
