"""One case ahead and one behind: while a case is worked on, a thread reads the next one, another writes the last one.

At most one case more is in memory for each. Cases are read, and written, one after the other, in the order of their
ids, and what goes wrong is raised when it is the turn of the case, so that nothing shows but the time.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TypeVar

Read = TypeVar("Read")
Result = TypeVar("Result")


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
