"""One number, one source: folders of results that say two things of one pipeline are refused, and named.

Studies of the board show the same pipelines of the same tasks: Table 4, the corrupted images, the other calibrators,
the studies that set a number beside others. Where they come from runs of different times, rows can contradict each
other. So every number that is stated twice must be the same, and tasks that share a name must be divided alike.
"""

import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from segcal.errors import InputError
from segcal.summary import Summary, read_summary

# Networks that ran on two machines differ in the last digit of half floats, and what is binned by up to 6e-4; another
# fit or another division differs by more.
TOLERANCE = 1e-3
SHOWN = 3


class Place(NamedTuple):
    """The subject of a number."""

    task: str
    test_on: str
    pipeline: str
    metric: str

    def __str__(self) -> str:
        where = f"{self.task} tested on {self.test_on}" if self.test_on else self.task
        return f"{self.metric} of {self.pipeline} on {where}"


# Who says it, and the number; None is undefined.
Stated = dict[Place, dict[str, float | None]]


def check_sources(folder: Path, names: Iterable[str]) -> None:
    """Refuse folders of results that divide a task differently, or state a number twice and differently.

    Args:
        folder: holds the folders of results.
        names: those of them that share tasks; what is not there is passed over.
    """
    stated: Stated = {}
    divisions: dict[str, dict[str, str]] = {}
    for name in names:
        if (folder / name / "summary.json").is_file():
            summary = read_summary(folder / name)
            for task in summary.tasks:
                divisions.setdefault(task.name, {})[name] = _division(summary, task)
            for place, value in (*_of_summary(summary), *_of_sizes(folder / name), *_of_shift(folder / name)):
                stated.setdefault(place[0], {})[f"{name}{place[1]}"] = value
    for task, found in divisions.items():
        if len(set(found.values())) > 1:
            texts = "; ".join(f"{name} has {text}" for name, text in found.items())
            raise InputError(
                f"{folder} divides {task} in two ways ({texts}), but studies share cases. "
                "Run both protocols with the same cases, split and fit."
            )
    _check_equal(folder, stated)


def _check_equal(folder: Path, stated: Stated) -> None:
    wrong = []
    for place, found in stated.items():
        first = next(iter(found.values()))
        if not all(_same(first, other) for other in found.values()):
            wrong.append(f"{place}: " + ", ".join(f"{value} in {name}" for name, value in found.items()))
    if wrong:
        more = f"; and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
        raise InputError(
            f"{folder} says two things of one number ({'; '.join(wrong[:SHOWN])}{more}), but a row needs one source. "
            "Run the older of the two again, in an empty folder."
        )


def _same(first: float | None, second: float | None) -> bool:
    if first is None or second is None:
        return first is second
    return math.isclose(first, second, rel_tol=TOLERANCE, abs_tol=1e-9)


def _division(summary: Summary, task: Any) -> str:
    facts = {key: getattr(task, key) for key in ("cases", "members", "cal", "val", "test")}
    return json.dumps(facts | {"repeats": summary.repeats, "fit": summary.fit}, sort_keys=True)


Found = Iterator[tuple[tuple[Place, str], float | None]]


def _of_summary(summary: Summary) -> Found:
    for row in summary.results:
        for metric, one in row.metrics.items():
            yield (Place(row.task, row.test_on, row.pipeline, metric), ""), one.value


def _of_sizes(folder: Path) -> Found:
    """Yield what the study of calibration sizes says of the protocol's own size."""
    for task, data in _study(folder, "calibration_size").items():
        for pipeline, curves in data["pipelines"].items():
            for metric, points in curves.items():
                for point in points:
                    if point["n"] == data["reference"]:
                        value = point["value"]["value"]
                        yield (Place(task, "", pipeline, metric), "/studies/calibration_size.json"), value


def _of_shift(folder: Path) -> Found:
    for task, data in _study(folder, "covariate_shift").items():
        for pipeline, places in data["pipelines"].items():
            for target, found in places.items():
                for metric, one in found["metrics"].items():
                    yield (Place(task, target, pipeline, metric), "/studies/covariate_shift.json"), one["value"]


def _study(folder: Path, name: str) -> dict[str, Any]:
    path = folder / "studies" / f"{name}.json"
    tasks: dict[str, Any] = json.loads(path.read_text("utf-8"))["tasks"] if path.is_file() else {}
    return tasks
