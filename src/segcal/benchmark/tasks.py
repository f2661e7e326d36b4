"""The tasks of a protocol: cases that the package makes, or folders of the user's, and how they are divided.

An embedded task is only named here: the networks that predict it are part of the demonstration, which lies above the
benchmark. So the protocol holds the function that opens it.
"""

import re
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeAlias, cast

from msgspec import Meta, Struct, defstruct, structs, to_builtins
from torch import Tensor

from segcal.benchmark.toml import AtLeastOne, Count, Text, read_table
from segcal.cases import Cases, ReadOptions, open_cases
from segcal.cases.region_view import region_view
from segcal.errors import InputError
from segcal.names import clean


class Division(Struct, frozen=True, forbid_unknown_fields=True):
    """The numbers of cases for calibration, validation and test.

    Attributes:
        test: None is all the rest.
        fitted: of those for calibration and validation, only so many for calibration and the others for validation,
            drawn anew; the test stays. None leaves them as they are.
    """

    cal: AtLeastOne = 50
    val: Count = 25
    test: AtLeastOne | None = None
    fitted: AtLeastOne | None = None


class _Named(Struct, frozen=True):
    name: Text


class _Shared(_Named, frozen=True, kw_only=True):
    """The keys that all tasks have.

    Attributes:
        background: class 0 is background, and Dice leaves it out; None: as the task says.
        split: how its cases are divided; None: as the protocol says.
        test_on: other tasks that its calibrators are also tested on.
        test_only: nothing is fitted on it; it is there for `test_on`.
        exclude: cases that are left out.
    """

    background: bool | None = None
    split: Division | None = None
    test_on: tuple[Text, ...] = ()
    test_only: bool = False
    exclude: tuple[Text, ...] = ()

    @property
    def folders(self) -> tuple[str, ...]:
        """All that is read; of an embedded task nothing."""
        return ()

    def plain(self) -> dict[str, object]:
        """Return it as plain data."""
        return dict(to_builtins(self, enc_hook=str))

    def deciding(self) -> dict[str, object]:
        """Return what decides numbers: not what else is tested, nor what is left out, which its cases tell."""
        plain = self.plain() | {"test_on": []}
        del plain["exclude"]
        return plain

    def by_region(self) -> "list[Task]":
        """Return it, or one task per region."""
        return [cast(Task, self)]


class EmbeddedTask(_Shared, frozen=True, forbid_unknown_fields=True):
    """A task that the package carries: so many cases, drawn from their index, and members of its ensemble.

    With a `corruption`, "mild" or "strong", images are corrupted before the networks see them.
    """

    embedded: Text
    cases: Annotated[int, Meta(ge=1, le=1_000_000)] = 60
    first: Count = 0
    members: AtLeastOne = 5
    corruption: Text = ""

    def open(self, pooling: str, root: Path, embedded: "Opener | None", members: int | None) -> "OpenTask":
        """Open its cases; the arguments are those of :func:`open_task`."""
        if embedded is None:
            raise InputError(
                f"task {self.name!r} is an embedded one, but this run was given no embedded tasks. "
                "Pass segcal.demo.embedded.open_embedded as `embedded`, or name folders."
            )
        if members is None:
            return embedded(self, pooling)
        return embedded(structs.replace(self, members=members), pooling, once=True)


class FolderTask(_Shared, frozen=True):
    """Cases in folders of the user's, one per member, and of labels, one per rater; paths begin at the protocol's root.

    `options` are what else is declared about the files; their pooling is the pipeline's. `background` is true unless
    declared. Of declared regions each is a task of two classes, off and on, and `region` says which.
    """

    members: tuple[str, ...]
    labels: str | tuple[str, ...]
    options: ReadOptions = ReadOptions()
    region: str | None = None

    def __post_init__(self) -> None:
        structs.force_setattr(self, "background", self.background is not False)

    @property
    def folders(self) -> tuple[str, ...]:
        """All that is read."""
        return *self.members, *self.label_folders

    @property
    def label_folders(self) -> tuple[str, ...]:
        """The folders of labels, one per rater."""
        return (self.labels,) if isinstance(self.labels, str) else self.labels

    def open(self, pooling: str, root: Path, embedded: "Opener | None", members: int | None) -> "OpenTask":
        """Open its cases; the arguments are those of :func:`open_task`."""
        folders = [root / member for member in self.members[: 1 if pooling == "single" else members]]
        # A single folder has nothing to pool: its mean is itself, but the pooling still says what calibrators see.
        options = replace(self.options, pooling=pooling, **_resolved(self.options, root))
        cases: Cases = open_cases(folders, [root / each for each in self.label_folders], options=options)
        if cases.regions is not None:
            if self.region is None:
                raise InputError(
                    f"task {self.name!r} has the regions {', '.join(cases.regions.names)}, but each of them is "
                    "measured by itself. Declare them: regions = {name = [labels], ...}."
                )
            cases = region_view(cases, cases.regions.names.index(self.region))
        return OpenTask(cases, bool(self.background))

    def plain(self) -> dict[str, object]:
        """Return it as plain data; of what is declared about files, pairs of what was given."""
        plain = super().plain() | {"options": self._given()}
        if self.region is None:  # results of before there were regions stay what they are
            del plain["region"]
        return plain

    def _given(self) -> list[tuple[str, object]]:
        declared = to_builtins(self.options, enc_hook=str)
        given = ((each.name, declared[each.name]) for each in _DECLARED)
        return sorted((name, value) for name, value in given if value is not None)

    def deciding(self) -> dict[str, object]:
        """Return what decides numbers: not where its files are."""
        options = [[key, key in PLACES or value] for key, value in self._given()]
        raters = True if isinstance(self.labels, str) else len(self.labels)
        return super().deciding() | {"options": options, "members": len(self.members), "labels": raters}

    def by_region(self) -> "list[Task]":
        """Return one task per region, named after both."""
        if self.options.regions is None:
            return [self]
        names = [clean(str(name)) for name in self.options.regions]
        tails = ["".join(letter if letter.isalnum() else "-" for letter in name) for name in names]
        pairs = zip(names, tails, strict=True)
        return [structs.replace(self, name=f"{self.name}-{tail}", region=name) for name, tail in pairs]


Task: TypeAlias = EmbeddedTask | FolderTask

# Declarations that say where files are, which decides no number.
PLACES = ("labels", "images", "properties")
_DECLARED = [each for each in fields(ReadOptions) if each.name != "pooling"]
_KINDS: dict[type, Any] = {
    str: Text | None,
    int: int | None,
    bool: bool | None,
    list: tuple[Text, ...] | None,
    tuple: tuple[int, ...] | None,
    dict: dict[Text, tuple[int, ...]] | None,
}
# A folder task as TOML has it: what is declared about its files stands among its own keys.
_FolderTable = defstruct(
    "_FolderTable",
    [
        ("members", tuple[Text, ...]),
        ("labels", tuple[Text, ...]),  # msgspec frees a pattern twice in a union with an array
        *((each.name, _KINDS[each.metadata["plain"]], None) for each in _DECLARED),
    ],
    bases=(_Shared,),
    forbid_unknown_fields=True,
)


class OpenTask(NamedTuple):
    """A task's cases with one pooling, and whether Dice leaves class 0 out.

    `model` makes pooled logits ``(classes, *space)`` from an image ``(channels, *space)``, if it can be run here.
    """

    cases: Cases
    background: bool
    model: Callable[[Tensor], Tensor] | None = None


# Opens an embedded task with a pooling, as `segcal.demo.embedded.open_embedded` does; with once=True nothing need be
# kept of what is predicted. It is sent to worker processes, so it can be pickled.
Opener: TypeAlias = Callable[..., OpenTask]


_ARGUMENT = re.compile(rf"\b({'|'.join(each.name for each in _DECLARED)})=")


def in_keys(text: str) -> str:
    """Return a message about declarations in the words of a protocol.

    >>> in_keys("Pass label_axes='zyx'.")
    "Pass label_axes = 'zyx'."
    """
    return _ARGUMENT.sub(r"\1 = ", text)


def open_task(
    task: Task, pooling: str, root: Path = Path(), embedded: Opener | None = None, members: int | None = None
) -> OpenTask:
    """Open the cases of a task with a pooling; "single" is the first member alone.

    Relative paths begin at `root`; `embedded` opens embedded tasks. With only so many of its `members`, cases are read
    once.
    """
    opened = task.open(pooling, root, embedded, members)
    if not task.exclude:
        return opened
    ids = opened.cases.ids
    kept = [case_id for case_id in ids if case_id not in task.exclude]
    unknown = [case_id for case_id in task.exclude if case_id not in ids]
    if unknown or not kept:
        what = f"{unknown[0]!r}, which is none of its cases" if unknown else f"all {len(ids)} cases"
        raise InputError(f"task {task.name!r} has exclude with {what}, but cases must remain. Change exclude.")
    return opened._replace(cases=opened.cases.subset(kept))


def _resolved(options: ReadOptions, root: Path) -> dict[str, Any]:
    """Return the declarations that are paths, from the root."""
    paths = {each.name: getattr(options, each.name) for each in _DECLARED if each.metadata.get("path")}
    for name in ("groups", "sites"):
        if str(getattr(options, name)).lower().endswith(".csv"):
            paths[name] = getattr(options, name)
    return {name: root / path for name, path in paths.items() if path is not None}


def read_task(entry: object, where: str) -> Task:
    """Read the table of a task."""
    if isinstance(entry, dict) and "embedded" in entry:
        task: Task = read_table(entry, where, EmbeddedTask)
    else:
        if isinstance(entry, dict) and isinstance(entry.get("labels"), str):
            entry = entry | {"labels": [entry["labels"]]}
        found = structs.asdict(read_table(entry, where, _FolderTable))
        found["labels"] = found["labels"] if len(found["labels"]) > 1 else "".join(found["labels"])
        options = ReadOptions(**{each.name: found.pop(each.name) for each in _DECLARED})
        task = FolderTask(**found, options=options)
    if task.name[:1] in ("", ".") or not all(letter.isalnum() or letter in "-_." for letter in task.name):
        raise InputError(
            f"protocol has {where}.name = {task.name!r}, but letters, digits, '-', '_' and '.' are needed, because it "
            "names a folder. Rename the task."
        )
    return task


def check_tasks(tasks: tuple[Task, ...]) -> None:
    """Refuse tasks of one name, tests on tasks that are not there, and tasks that nothing is fitted on."""
    names = [task.name for task in tasks]
    for task in tasks:
        if names.count(task.name) > 1:
            raise InputError(f"protocol has two tasks named {task.name!r}, but names must differ. Rename one.")
        for target in task.test_on:
            if target not in names or target == task.name:
                others = ", ".join(each for each in names if each != task.name) or "none"
                raise InputError(
                    f"task {task.name!r} has test_on = {target!r}, but another task is needed. "
                    f"The others are: {others}."
                )
    if all(task.test_only for task in tasks):
        raise InputError("protocol has test_only tasks alone, but one must be fitted on. Remove a test_only.")
