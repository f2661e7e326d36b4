"""The tasks of a protocol: cases that the package draws, or folders of the user's, and how they are divided.

An embedded task is only named here; how it is drawn and predicted is given to the run as a function, because the
networks are part of the demonstration and not of the benchmark.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeAlias

from torch import Tensor

from segcal.benchmark.reading import check_range, read_table, require
from segcal.cases import Cases, open_cases
from segcal.errors import InputError

SHARED = {"name": str, "background": bool, "split": dict, "test_on": list, "test_only": bool, "exclude": list}
EMBEDDED = {"embedded": str, "cases": int, "first": int, "members": int, "corruption": str}
FOLDERS: dict[str, type | None] = {
    "members": list, "labels": str, "kind": str, "format": str, "ignore": int, "class_axis": int, "key": str,
    "label_key": str, "label_axes": str, "images": str, "groups": str, "class_names": list, "properties": str,
}  # fmt: skip
# Each of them is drawn and predicted.
MOST_EMBEDDED = 1_000_000
PATHS = ("labels", "images", "properties")


@dataclass(frozen=True)
class Division:
    """How many cases are for calibration, validation and test.

    Attributes:
        cal: for calibration.
        val: for validation.
        test: for the test; None is all the rest.
        fitted: of those for calibration and validation, only so many for calibration and the others for validation,
            drawn anew; the test stays. None leaves them as they are.
    """

    cal: int = 50
    val: int = 25
    test: int | None = None
    fitted: int | None = None

    def to_plain(self) -> dict[str, int | None]:
        """Return plain data; `fitted` only where it is used."""
        return {key: value for key, value in asdict(self).items() if key != "fitted" or value is not None}


@dataclass(frozen=True)
class EmbeddedTask:
    """A task that the package carries.

    Attributes:
        name: how results name it.
        embedded: its name among the embedded tasks.
        cases: how many cases.
        first: the index of the first one; cases are drawn from their index.
        members: how many networks of its ensemble.
        corruption: "" or a strength ("mild", "strong"): pictures are corrupted before the networks see them.
        background: class 0 is what is left over, and Dice leaves it out; None: as the task says.
        split: how its cases are divided; None: as the protocol says.
        test_on: other tasks that its calibrators are also tested on.
        test_only: nothing is fitted on it; it is there for `test_on`.
        exclude: cases that are left out.
    """

    name: str
    embedded: str
    cases: int = 60
    first: int = 0
    members: int = 5
    corruption: str = ""
    background: bool | None = None
    split: Division | None = None
    test_on: tuple[str, ...] = ()
    test_only: bool = False
    exclude: tuple[str, ...] = ()


@dataclass(frozen=True)
class FolderTask:
    """Cases in folders of the user's, one folder a member; paths are relative to the protocol's root.

    Attributes:
        name: how results name it.
        members: one folder of predictions a member.
        labels: the folder of labels.
        options: the other arguments of :func:`segcal.open_cases`, as pairs.
        background: class 0 is what is left over, and Dice leaves it out.
        split: how its cases are divided; None: as the protocol says.
        test_on: other tasks that its calibrators are also tested on.
        test_only: nothing is fitted on it; it is there for `test_on`.
        exclude: cases that are left out.
    """

    name: str
    members: tuple[str, ...]
    labels: str
    options: tuple[tuple[str, Any], ...] = ()
    background: bool | None = True
    split: Division | None = None
    test_on: tuple[str, ...] = ()
    test_only: bool = False
    exclude: tuple[str, ...] = ()


Task: TypeAlias = EmbeddedTask | FolderTask


@dataclass(frozen=True)
class OpenTask:
    """A task's cases with one pooling.

    Attributes:
        cases: the cases.
        background: whether class 0 is left out of Dice.
        model: makes pooled logits ``(classes, *space)`` from an image ``(channels, *space)``, if it can be run here.
    """

    cases: Cases
    background: bool
    model: Callable[[Tensor], Tensor] | None = None


# Opens an embedded task with a pooling. It travels to worker processes, so it must be picklable.
Opener: TypeAlias = Callable[[EmbeddedTask, str], OpenTask]


def open_task(task: Task, pooling: str, root: Path, embedded: Opener | None) -> OpenTask:
    """Open the cases of a task with a pooling; "single" is the first member alone."""
    opened = _open_all_cases(task, pooling, root, embedded)
    return replace(opened, cases=_without(opened.cases, task)) if task.exclude else opened


def _open_all_cases(task: Task, pooling: str, root: Path, embedded: Opener | None) -> OpenTask:
    if isinstance(task, EmbeddedTask):
        if embedded is None:
            raise InputError(
                f"task {task.name!r} is an embedded one, but this run was given no embedded tasks. "
                "Pass segcal.demo.opening.open_embedded as `embedded`, or name folders."
            )
        return embedded(task, pooling)
    members = task.members[:1] if pooling == "single" else task.members
    # A single folder has nothing to pool: its mean is itself, but the pooling still says what calibrators see.
    options = {key: _resolved(key, value, root) for key, value in task.options}
    cases = open_cases([root / member for member in members], root / task.labels, pooling=pooling, **options)
    return OpenTask(cases, task.background is not False)


def _without(cases: Cases, task: Task) -> Cases:
    kept = [case_id for case_id in cases.ids if case_id not in task.exclude]
    unknown = [case_id for case_id in task.exclude if case_id not in cases.ids]
    if unknown or not kept:
        what = f"{unknown[0]!r}, which is none of its cases" if unknown else f"all {len(cases)} cases"
        raise InputError(f"task {task.name!r} has exclude with {what}, but cases must remain. Change exclude.")
    return cases.subset(kept)


def read_tasks(entries: object) -> tuple[Task, ...]:
    """Read the list of tasks."""
    if not isinstance(entries, list) or not entries:
        raise InputError("protocol has no tasks, but at least one is needed. Add a table [[tasks]].")
    tasks = tuple(_read_task(entry, f"tasks[{number}]") for number, entry in enumerate(entries))
    names = [task.name for task in tasks]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"protocol has two tasks named {name!r}, but names must differ. Rename one.")
    for task in tasks:
        for target in task.test_on:
            if target not in names or target == task.name:
                others = ", ".join(each for each in names if each != task.name) or "none"
                raise InputError(
                    f"task {task.name!r} has test_on = {target!r}, but another task is needed. "
                    f"The others are: {others}."
                )
    if all(task.test_only for task in tasks):
        raise InputError("protocol has test_only tasks alone, but one must be fitted on. Remove a test_only.")
    return tasks


def read_division(table: object, where: str) -> Division:
    """Read a split."""
    division = Division(**read_table(table, where, {"cal": int, "val": int, "test": int}))
    check_range(division.cal, f"{where}.cal", 1)
    check_range(division.val, f"{where}.val", 0)
    check_range(1 if division.test is None else division.test, f"{where}.test", 1)
    return division


def _read_task(entry: object, where: str) -> Task:
    embedded = isinstance(entry, dict) and "embedded" in entry
    found = read_table(entry, where, {**SHARED, **(EMBEDDED if embedded else FOLDERS)})
    require(found, where, ["name", *(["embedded"] if embedded else ["members", "labels"])])
    _check_name(found["name"], where)
    if "split" in found:
        found["split"] = read_division(found["split"], f"{where}.split")
    for key in ("test_on", "members", "class_names", "exclude"):
        if isinstance(found.get(key), list):
            found[key] = tuple(found[key])
    if embedded:
        check_range(found.get("cases", 1), f"{where}.cases", 1, MOST_EMBEDDED)
        check_range(found.get("first", 0), f"{where}.first", 0)
        check_range(found.get("members", 1), f"{where}.members", 1)
        return EmbeddedTask(**found)
    own = {f.name for f in fields(FolderTask)}
    options = tuple(sorted((key, value) for key, value in found.items() if key not in own))
    return FolderTask(**{key: value for key, value in found.items() if key in own}, options=options)


def _check_name(name: str, where: str) -> None:
    if not name or not all(letter.isalnum() or letter in "-_." for letter in name) or name.startswith("."):
        raise InputError(
            f"protocol has {where}.name = {name!r}, but letters, digits, '-', '_' and '.' are needed, because it "
            "names a folder. Rename the task."
        )


def _resolved(key: str, value: Any, root: Path) -> Any:
    table = key == "groups" and value.lower().endswith(".csv")
    return root / value if key in PATHS or table else value
