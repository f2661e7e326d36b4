"""The tasks of a protocol: cases that the package draws, or folders of the user's, and how they are divided.

An embedded task is only named here: the networks that predict it are part of the demonstration, which lies above the
benchmark, so the protocol holds the function that opens it.
"""

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeAlias
from typing import Protocol as Interface

from msgspec import Meta, Struct, defstruct, structs, to_builtins
from torch import Tensor

from segcal.benchmark.toml import AtLeastOne, Count, Text, read_table
from segcal.cases import Cases, ReadOptions, open_cases
from segcal.errors import InputError

# Each of them is drawn and predicted.
MOST_EMBEDDED = 1_000_000


class Division(Struct, frozen=True, forbid_unknown_fields=True):
    """How many cases are for calibration, validation and test.

    Attributes:
        test: None is all the rest.
        fitted: of those for calibration and validation, only so many for calibration and the others for validation,
            drawn anew; the test stays. None leaves them as they are.
    """

    cal: AtLeastOne = 50
    val: Count = 25
    test: AtLeastOne | None = None
    fitted: AtLeastOne | None = None


class EmbeddedTask(Struct, frozen=True, forbid_unknown_fields=True):
    """A task that the package carries.

    Attributes:
        name: how results name it.
        embedded: its name among the embedded tasks.
        cases: how many cases.
        first: the index of the first one; cases are drawn from their index.
        members: how many networks of its ensemble.
        corruption: "" or a strength ("mild", "strong"): pictures are corrupted before the networks see them.
        background: class 0 is background, and Dice leaves it out; None: as the task says.
        split: how its cases are divided; None: as the protocol says.
        test_on: other tasks that its calibrators are also tested on.
        test_only: nothing is fitted on it; it is there for `test_on`.
        exclude: cases that are left out.
    """

    name: Text
    embedded: Text
    cases: Annotated[int, Meta(ge=1, le=MOST_EMBEDDED)] = 60
    first: Count = 0
    members: AtLeastOne = 5
    corruption: Text = ""
    background: bool | None = None
    split: Division | None = None
    test_on: tuple[Text, ...] = ()
    test_only: bool = False
    exclude: tuple[Text, ...] = ()


class FolderTask(Struct, frozen=True):
    """Cases in folders of the user's; paths are relative to the protocol's root.

    Attributes:
        members: one folder of predictions per member.
        labels: the folder of labels.
        options: what else is declared about them; their pooling is the pipeline's.
        background, split, test_on, test_only, exclude: as for :class:`EmbeddedTask`.
    """

    name: str
    members: tuple[str, ...]
    labels: str
    options: ReadOptions = ReadOptions()
    background: bool = True
    split: Division | None = None
    test_on: tuple[str, ...] = ()
    test_only: bool = False
    exclude: tuple[str, ...] = ()


Task: TypeAlias = EmbeddedTask | FolderTask

DECLARED = [each for each in fields(ReadOptions) if each.name != "pooling"]
_PLAIN = {str: Text, int: int, list: tuple[Text, ...]}
# A folder task as TOML has it: what is declared about its files stands among its own keys.
_FolderTable = defstruct(
    "_FolderTable",
    [
        ("name", Text), ("members", tuple[Text, ...]), ("labels", Text), ("background", bool, True),
        ("split", Division | None, None), ("test_on", tuple[Text, ...], ()), ("test_only", bool, False),
        ("exclude", tuple[Text, ...], ()), *((f.name, _PLAIN[f.metadata["plain"]] | None, None) for f in DECLARED),
    ],
    forbid_unknown_fields=True,
)  # fmt: skip


class OpenTask(NamedTuple):
    """A task's cases with one pooling.

    Attributes:
        cases: the cases.
        background: whether class 0 is left out of Dice.
        model: makes pooled logits ``(classes, *space)`` from an image ``(channels, *space)``, if it can be run here.
    """

    cases: Cases
    background: bool
    model: Callable[[Tensor], Tensor] | None = None


class Opener(Interface):
    """Opens an embedded task with a pooling; `once` says that nothing need be kept of what is predicted.

    It travels to worker processes, so it must be picklable.
    """

    def __call__(self, task: EmbeddedTask, pooling: str, *, once: bool = False) -> OpenTask:  # noqa: D102
        ...


def open_task(
    task: Task, pooling: str, root: Path = Path(), embedded: Opener | None = None, members: int | None = None
) -> OpenTask:
    """Open the cases of a task with a pooling; "single" is the first member alone.

    Args:
        task: the task.
        pooling: a name from :data:`segcal.POOLINGS`.
        root: where its relative paths begin.
        embedded: opens embedded tasks: :func:`segcal.demo.embedded.open_embedded`.
        members: only so many of its members; such cases are read once.
    """
    if isinstance(task, FolderTask):
        folders = [root / member for member in task.members[: 1 if pooling == "single" else members]]
        # A single folder has nothing to pool: its mean is itself, but the pooling still says what calibrators see.
        options = replace(task.options, pooling=pooling, **_resolved(task.options, root))
        opened = OpenTask(open_cases(folders, root / task.labels, options=options), task.background)
    elif embedded is None:
        raise InputError(
            f"task {task.name!r} is an embedded one, but this run was given no embedded tasks. "
            "Pass segcal.demo.embedded.open_embedded as `embedded`, or name folders."
        )
    elif members is None:
        opened = embedded(task, pooling)
    else:
        opened = embedded(structs.replace(task, members=members), pooling, once=True)
    return opened._replace(cases=_without(opened.cases, task)) if task.exclude else opened


def task_plain(task: Task) -> dict[str, Any]:
    """Return a task as plain data; of what is declared about files, pairs of what was given."""
    plain: dict[str, Any] = to_builtins(task, enc_hook=str)
    if isinstance(task, FolderTask):
        plain["options"] = sorted([f.name, value] for f in DECLARED if (value := plain["options"][f.name]) is not None)
    return plain


def read_task(entry: object, where: str) -> Task:
    """Read the table of a task."""
    if isinstance(entry, dict) and "embedded" in entry:
        task: Task = read_table(entry, where, EmbeddedTask)
    else:
        given = structs.asdict(read_table(entry, where, _FolderTable))
        declared = {each.name: given.pop(each.name) for each in DECLARED}
        task = FolderTask(**given, options=ReadOptions(**declared))
    if not task.name.strip(".") or task.name[0] == "." or not all(x.isalnum() or x in "-_." for x in task.name):
        raise InputError(
            f"protocol has {where}.name = {task.name!r}, but letters, digits, '-', '_' and '.' are needed, because it "
            "names a folder. Rename the task."
        )
    return task


def check_tasks(tasks: tuple[Task, ...]) -> None:
    """Refuse tasks of one name, tests on tasks that are not there, and tasks that nothing is fitted on."""
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


def _without(cases: Cases, task: Task) -> Cases:
    kept = [case_id for case_id in cases.ids if case_id not in task.exclude]
    unknown = [case_id for case_id in task.exclude if case_id not in cases.ids]
    if unknown or not kept:
        what = f"{unknown[0]!r}, which is none of its cases" if unknown else f"all {len(cases)} cases"
        raise InputError(f"task {task.name!r} has exclude with {what}, but cases must remain. Change exclude.")
    return cases.subset(kept)


def _resolved(options: ReadOptions, root: Path) -> dict[str, Path]:
    """Return the declarations that are paths, from the root."""
    paths = {f.name: getattr(options, f.name) for f in DECLARED if f.metadata.get("path")}
    if str(options.groups).lower().endswith(".csv"):
        paths["groups"] = options.groups
    return {name: root / path for name, path in paths.items() if path is not None}
