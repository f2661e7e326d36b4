"""Cases on the workers of Dask: those of a scheduler somewhere, or processes that are started here.

Dask does what an engine must: it sends, moves, retries, and gives the cases of a worker that is lost to another one.
Results are taken in the order of the ids, and at most a few cases per worker are under way, so that neither the number
of workers nor what becomes of them shows in a result, and memory does not grow with the number of cases.
"""

import pickle
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.metadata import version
from typing import Any, Self

import torch

from segcal.cases.base import CaseError
from segcal.cases.nifti_file import load_extra
from segcal.cases.parallel import Engine, Outcome, on_case
from segcal.errors import InputError

# How often a case is tried again that failed for a reason that is not its own.
RETRIES = 2
SECONDS = 10


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
                self._cluster = distributed.LocalCluster(
                    n_workers=self._number, threads_per_worker=1, processes=True, dashboard_address=None
                )
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
        waiting: deque[tuple[str, Any]] = deque()
        try:
            for case_id in ids:
                waiting.append((case_id, self.client.submit(_guarded, shared, case_id, retries=RETRIES, pure=False)))
                if len(waiting) > 2 * max(1, self._threads()):
                    done, future = waiting.popleft()
                    yield done, partial(_result, done, future)
            while waiting:
                done, future = waiting.popleft()
                yield done, partial(_result, done, future)
        finally:
            self.client.cancel([future for _, future in waiting])

    def _threads(self) -> int:
        return sum(self.client.nthreads().values())

    def _check_versions(self) -> None:
        own = version("segcal")
        for worker, found in self.client.run(version, "segcal").items():
            if found != own:
                raise InputError(
                    f"worker {worker} has segcal {found}, but this is {own}, and results must be of one version. "
                    "Install the same on all workers."
                )


def _guarded(function: Callable[[str], Any], case_id: str) -> Any:
    """Return the result of a case, or its own error: that one is not tried again."""
    torch.set_num_threads(1)
    try:
        return on_case(function, case_id)
    except CaseError as error:
        return error


def _result(case_id: str, future: Any) -> Any:
    try:
        result = future.result()
    except InputError:
        raise
    except Exception as error:  # whatever a worker raised, or its end
        reason = (str(error).splitlines() or [""])[0][:200]
        raise InputError(
            f"case {case_id!r} could not be worked on ({type(error).__name__}: {reason}), though it was tried "
            f"{RETRIES + 1} times, but all cases are needed. Look at the logs of the workers, and run it again."
        ) from None
    if isinstance(result, CaseError):
        raise result
    return result
