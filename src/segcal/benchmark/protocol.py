r"""A protocol: everything that decides the numbers of a benchmark, read from one TOML file.

Three things are kept apart. Settings that decide the numbers are in the hash. The location of files (`root`) is not, so
results survive a move. Nor are `workers` and `device`, which change only the time and, for a device, last digits.

A pipeline is a pooling followed by a calibrator; the rows of the paper's Table 4 are the list of them. Written
`ts(mean_probs)`: temperature scaling of the mean of the members' probabilities. The paper's names are :math:`p_0` for
the first network alone, :math:`\bar p` for `mean_probs` and :math:`\bar z` for `mean_logits`.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from msgspec import UNSET, Meta, Struct, UnsetType, defstruct, structs, to_builtins

from segcal.benchmark.tasks import (
    Division,
    Opener,
    OpenTask,
    Task,
    check_tasks,
    open_task,
    read_task,
)
from segcal.benchmark.toml import AtLeastOne, Count, Number, Text, read_table, read_toml
from segcal.calibrators import CALIBRATORS, Calibrator, make_calibrator
from segcal.cases import Cases, Split
from segcal.errors import InputError
from segcal.fitting import FitConfig
from segcal.metrics import find_metrics
from segcal.pooling import check_pooling
from segcal.summary import Bootstrap
from segcal.types import Preserves

SYMBOLS = {"single": "p_0", "mean_probs": r"\bar{p}", "mean_logits": r"\bar{z}"}

_P, _L = "mean_probs", "mean_logits"
# Pooling and calibrator, in the row groups of Table 4. Vector scaling is defined in the paper, but not in its table;
# conic scaling is ours.
ROW_GROUPS: dict[str, tuple[tuple[str, str], ...]] = {
    "(a) Uncalibrated baselines": (("single", "identity"), (_P, "identity"), (_L, "identity")),
    "(b) Translation invariance: MS vs. MS_c and DC": ((_L, "ms"), (_L, "dc"), (_L, "ms_c")),
    "(c) Translation invariance: LTS with logits vs. log-probabilities": ((_L, "lts"), (_L, "lts_ti")),
    "(d) Decision preservation: CDC vs. CMS": tuple(
        (how, name) for how in (_P, _L) for name in ("cdc", "cms_ap", "cms_op")
    ),
    "(e) Standard temperature-based calibrators (order-preserving, TI): TS, ETS": tuple(
        (how, name) for name in ("ts", "ets") for how in (_P, _L)
    ),
    "(f) Standard affine calibrator (not order-preserving, TI): DC": ((_P, "dc"), (_L, "dc")),
    "(g) Vector scaling, and its TI form": ((_L, "vs"), (_L, "vs_ti")),
    "(h) Curves that see the neighbourhood (TI): conic scaling": tuple(
        (how, name) for name in ("conic", "conic_class") for how in (_P, _L)
    ),
}
OTHER_ROWS = "Others"
DEFAULT_METRICS = (
    "nll", "dice", "ece", "ba_ece", "ace", "flip_rate", "harmful_flips", "beneficial_flips", "neutral_flips", "brier",
    "accuracy", "miou", "cece", "ece_foreground", "ece_wrong", "ece_boundary", "free_energy_std",
)  # fmt: skip
# Methods are compared as they were published: none counts groups that failed less.
AS_PUBLISHED = FitConfig(outliers=False)
DECIDING = ("paper", "split", "repeats", "seed", "fit", "metrics", "bootstrap")


class Pipeline(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A pooling and a calibrator.

    Attributes:
        pooling: a name from :data:`segcal.POOLINGS`; "single" is the first member alone.
        calibrator: a name from :data:`segcal.CALIBRATORS`.
        options: the calibrator's own options.

    >>> Pipeline("mean_probs", "ts").title
    'ts(mean_probs)'
    """

    pooling: Text
    calibrator: Text
    options: dict[str, object] = {}

    def __post_init__(self) -> None:
        check_pooling(self.pooling)
        structs.force_setattr(self, "options", dict(sorted(self.options.items())))
        if self.calibrator == "none":
            raise InputError("calibrator is 'none', but a name is needed. Write identity for no calibration.")
        self.make(2)  # a wrong name or option is refused here

    def __hash__(self) -> int:
        return hash((self.pooling, self.calibrator, *self.options))  # values may be lists

    @property
    def title(self) -> str:
        """Its title in tables."""
        options = "".join(f", {key}={value}" for key, value in self.options.items())
        return f"{self.calibrator}({self.pooling}{options})"

    @property
    def latex(self) -> str:
        """Its title in the paper, as LaTeX."""
        symbol = SYMBOLS[self.pooling]
        if self.calibrator == "identity":
            return f"${symbol}$"
        head, _, tail = self.calibrator.partition("_")
        name = (head.upper() if len(head) < 5 else head.capitalize()) + (rf"$_\mathrm{{{tail}}}$" if tail else "")
        options = "".join(rf", {key}={value}".replace("_", r"\_") for key, value in self.options.items())
        return f"{name}(${symbol}${options})"

    @property
    def translation_invariant(self) -> bool:
        """Whether the calibrator promises not to see the logits' offset."""
        return self.make(2).translation_invariant

    @property
    def preserves(self) -> Preserves:
        """The promise of the calibrator: order, argmax or nothing."""
        return self.make(2).preserves

    def make(self, num_classes: int) -> Calibrator:
        """Return a new calibrator, which is the identity until it is fitted."""
        return make_calibrator(self.calibrator, num_classes, **self.options)


def paper_pipelines() -> tuple[Pipeline, ...]:
    """Return the paper's pipelines, vector scaling and conic scaling.

    >>> [pipeline.title for pipeline in paper_pipelines()][:3]
    ['identity(single)', 'identity(mean_probs)', 'identity(mean_logits)']
    """
    return tuple(Pipeline(*pair) for pair in dict.fromkeys(pair for rows in ROW_GROUPS.values() for pair in rows))


def more_pipelines() -> tuple[Pipeline, ...]:
    """Return the calibrators that are not in the paper's table, on mean logits, beside none and temperature scaling.

    >>> [pipeline.title for pipeline in more_pipelines()][:2]
    ['identity(mean_logits)', 'ts(mean_logits)']
    """
    listed = {name for rows in ROW_GROUPS.values() for _, name in rows}
    others = [name for name in CALIBRATORS if name not in listed]
    return tuple(Pipeline("mean_logits", name) for name in ("identity", "ts", *others))


# What a protocol may write in the place of a list.
LISTS = {
    "paper": paper_pipelines,
    "more": more_pipelines,
    "all": lambda: tuple(dict.fromkeys((*paper_pipelines(), *more_pipelines()))),
}


def find_pipeline(name: str, pipelines: Sequence[Pipeline]) -> str:
    """Return the title of the pipeline that is named: by its title, or by its calibrator where that is enough."""
    found = [each.title for each in pipelines if each.title == name]
    found = found or [each.title for each in pipelines if each.calibrator == name]
    if len(found) != 1:
        known = ", ".join(each.title for each in pipelines)
        how_many = "no pipeline is" if not found else f"{len(found)} pipelines are"
        raise InputError(f"compare names {name!r}, but {how_many} called so. Choose from: {known}.")
    return found[0]


def in_row_groups(pipelines: Sequence[Pipeline]) -> dict[str, list[Pipeline]]:
    """Return the pipelines in the row groups of Table 4, some of them in two; all others follow as "Others".

    A group of which a calibrator is missing has no heading, which would name what is not there.
    """
    plain = {(each.pooling, each.calibrator): each for each in pipelines if not each.options}
    there = {name for _, name in plain}
    found = {
        title: [plain[pair] for pair in rows if pair in plain]
        for title, rows in ROW_GROUPS.items()
        if {name for _, name in rows} <= there
    }
    listed = {each for rows in found.values() for each in rows}
    rest = [each for each in pipelines if each not in listed]
    return found | ({OTHER_ROWS if found else "": rest} if rest else {})


class StudyOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """The extent of studies that read cases or fit again; the defaults are everything."""

    cases: AtLeastOne | None = None
    sizes: Annotated[tuple[AtLeastOne, ...], Meta(min_length=1)] | None = None
    size_tasks: tuple[Text, ...] | None = None
    padding_calibrators: tuple[Text, ...] | None = None
    model_sizes: dict[str, Annotated[int, Meta(ge=1, le=1 << 62)]] | None = None


class ProtocolFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A protocol as its file has it, key by key (``docs/protocol.md``).

    Numbers have bounds: a slip of the finger is not to run for a year. Studies read the results, and decide nothing
    about them; None are the usual ones. Pairs to compare are titles, or calibrators that only one pipeline has.
    """

    tasks: Any = ()
    split: Division = Division()
    repeats: Annotated[int, Meta(ge=1, le=1000)] = 3
    seed: Count = 0
    pipelines: Any = "paper"
    fit: Any = {}
    metrics: tuple[Text, ...] = DEFAULT_METRICS
    bootstrap: Bootstrap = Bootstrap()
    workers: Annotated[int, Meta(ge=1, le=1024)] = 1
    studies: Any = None
    study_options: StudyOptions = StudyOptions()
    compare: tuple[tuple[Text, Text], ...] = ()


class Protocol(ProtocolFile, frozen=True, kw_only=True):
    """The plan of a benchmark: the document, read, and where and how.

    Attributes:
        paper: whether the pipelines are a list of ours; then a pipeline that a task cannot have is left out, and not
            an error.
        root: where relative paths begin.
        device: where fits compute; not part of a file, since it belongs to a machine.
        notes: what was left out, in words.
        embedded: opens embedded tasks; see :data:`segcal.benchmark.tasks.Opener`.
    """

    tasks: tuple[Task, ...]
    pipelines: tuple[Pipeline, ...]
    fit: FitConfig = AS_PUBLISHED
    studies: tuple[str, ...] | None = None
    paper: bool = False
    root: Path = Path()
    device: str = "cpu"
    notes: tuple[str, ...] = ()
    embedded: Opener | None = None

    def task(self, name: str) -> Task:
        """Return the task of this name."""
        return next(task for task in self.tasks if task.name == name)

    def division(self, task: Task) -> Division:
        """Return how the cases of a task are divided."""
        return self.split if task.split is None else task.split

    def open(self, task: Task, pooling: str, members: int | None = None) -> OpenTask:
        """Open a task with a pooling; see :func:`segcal.benchmark.tasks.open_task`."""
        opened = open_task(task, pooling, self.root, self.embedded, members)
        looks = any("disagreement" in pipeline.make(2).wants for pipeline in self.pipelines)
        return opened._replace(cases=opened.cases.with_disagreement()) if looks else opened

    def divide(self, task: Task, cases: Cases, repeat: int) -> Split:
        """Divide the cases of a task, by groups; the same for every pipeline of a repeat, anew in each repeat."""
        division = self.division(task)
        wanted = division.cal + division.val + (division.test or 1)
        if wanted > len(cases):
            raise InputError(
                f"task {task.name!r} has {len(cases)} cases, but {division.cal} for calibration, {division.val} for "
                f"validation and at least {division.test or 1} for the test are asked for. Change its split."
            )
        first, second = (int(number) for number in np.random.SeedSequence([self.seed, repeat]).generate_state(2))
        split = cases.split(division.cal, division.val, first)
        if division.val and not len(split.val):
            raise InputError(
                f"task {task.name!r} has val = {division.val}, but no whole group of cases fits into it. "
                "Groups are kept whole: ask for more validation cases."
            )
        if division.fitted is not None:
            pool = cases.subset((*split.cal.ids, *split.val.ids))
            again = pool.split(min(division.fitted, len(pool) - 1), 0, first)
            split = split._replace(cal=again.cal, val=again.test)
        if division.test is None or division.test >= len(split.test):
            return split
        return split._replace(test=split.test.split(division.test, 0, second).cal)

    def to_plain(self) -> dict[str, object]:
        """Return what decides the numbers, as plain data."""
        plain = {"tasks": [task.plain() for task in self.tasks], "pipelines": to_builtins(self.pipelines)}
        plain |= {name: to_builtins(getattr(self, name)) for name in DECIDING}
        return plain | {"fit": self.fit.to_dict()}

    def hash(self) -> str:
        """Return a digest of everything that decides the numbers."""
        return digest(self.to_plain())


def digest(plain: object) -> str:
    """Return a short digest of plain data, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:16]


_STEPS = Annotated[int, Meta(ge=0, le=100_000_000)]
_FIT = {
    "lam": Number, "mu": Number, "nu": Number, "folds": Count, "voxels": Any, "seed": Count, "tol": Number,
    "memory": Annotated[int, Meta(ge=0, le=1 << 50)], "verify": bool, "method": Text,
    "trials": Annotated[int, Meta(ge=0, le=100_000)], "learning_rate": Number, "patience": _STEPS, "max_steps": _STEPS,
    "weight_decay": Number,
}  # fmt: skip
_FitTable = defstruct(
    "_FitTable", [(name, kind | UnsetType, UNSET) for name, kind in _FIT.items()], forbid_unknown_fields=True
)


def load_protocol(path: str | Path, root: str | Path | None = None) -> Protocol:
    """Read a protocol from a TOML file; its relative paths begin at `root`, or at the file's own folder."""
    file = Path(path)
    return parse_protocol(read_toml(file), file.parent if root is None else Path(root))


def parse_protocol(document: dict[str, object], root: str | Path = ".") -> Protocol:
    """Read a protocol from the tables of a TOML document; see :func:`load_protocol`."""
    found = read_table(document, "", ProtocolFile)
    if not isinstance(found.tasks, list) or not found.tasks:
        raise InputError("protocol has no tasks, but at least one is needed. Add a table [[tasks]].")
    tables = [read_task(entry, f"tasks[{number}]") for number, entry in enumerate(found.tasks)]
    tasks = tuple(task for table in tables for task in table.by_region())
    check_tasks(tasks)
    pipelines = _read_pipelines(found.pipelines)
    find_metrics(found.metrics)
    read_table(found.fit, "fit", _FitTable)
    read = {"tasks": tasks, "pipelines": pipelines, "fit": replace(AS_PUBLISHED, **found.fit), "root": Path(root)}
    read |= {"metrics": tuple(dict.fromkeys(found.metrics)), "studies": _read_studies(found.studies)}
    read["compare"] = tuple((find_pipeline(a, pipelines), find_pipeline(b, pipelines)) for a, b in found.compare)
    return Protocol(**structs.asdict(found) | read, paper=isinstance(found.pipelines, str))


def _read_pipelines(listed: object) -> tuple[Pipeline, ...]:
    if isinstance(listed, str) and listed in LISTS:
        return LISTS[listed]()
    if not isinstance(listed, list) or not listed:
        names = ", ".join(map(repr, LISTS))
        raise InputError(
            f"protocol has pipelines = {listed!r}, but one of {names}, or a list of tables, is needed. "
            'Write for example pipelines = [{pooling = "mean_probs", calibrator = "ts"}].'
        )
    pipelines = [read_table(entry, f"pipelines[{number}]", Pipeline) for number, entry in enumerate(listed)]
    for each in pipelines:
        if each.pooling == "mean_probs" and not each.translation_invariant:
            raise InputError(
                f"pipeline {each.title} depends on the offset of the logits, but mean_probs throws it away. "
                "Use mean_logits, or remove the pipeline."
            )
    return tuple(dict.fromkeys(pipelines))


def _read_studies(listed: Any) -> tuple[str, ...] | None:
    """Return the names as they are: whoever runs the studies knows which there are."""
    if listed is None:
        return None
    if listed == "all":
        return ("all",)
    if not isinstance(listed, list):
        raise InputError(
            f"protocol has studies = {listed!r}, but 'all' or a list of names is needed. "
            'Write for example studies = ["flips", "binning"].'
        )
    return tuple(listed)
