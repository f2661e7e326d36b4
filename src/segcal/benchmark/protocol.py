"""A protocol: everything that decides the numbers of a benchmark, read from one TOML file.

Three things are kept apart: what decides the numbers (part of the hash), where files lie (`root`, not part of it, so
that results survive a move), and how the work is spread (`workers` and `device`, which change nothing but the time and,
for a device, last digits).
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from segcal.benchmark.pipelines import LISTS, Pipeline, unknown_calibrators
from segcal.benchmark.reading import COUNT, check_range, read_table, read_toml, require
from segcal.benchmark.study_choice import USUAL, Options, read_options, read_studies
from segcal.benchmark.tasks import Division, Task, read_division, read_tasks
from segcal.errors import InputError
from segcal.fitting import FitConfig
from segcal.metrics import find_metrics
from segcal.summary import LEVEL, REPLICATES

PAPER = "paper"
DEFAULT_METRICS = (
    "nll", "dice", "ece", "ba_ece", "ace", "flip_rate", "harmful_flips", "beneficial_flips", "neutral_flips", "brier",
    "accuracy", "miou", "cece", "ece_foreground", "ece_wrong", "ece_boundary", "free_energy_std",
)  # fmt: skip
KEYS: dict[str, type | None] = {
    "tasks": None, "split": dict, "repeats": int, "seed": int, "pipelines": None, "fit": dict, "metrics": list,
    "bootstrap": dict, "workers": int, "studies": None, "study_options": dict,
}  # fmt: skip
# Least and most: a slip of the finger is not to run for a year.
BOUNDS = {"repeats": (1, 1000), "seed": (0, COUNT), "workers": (1, 1024)}
MOST_REPLICATES = 1_000_000
FIT_BOUNDS = {"memory": 1 << 50, "trials": 100_000, "max_steps": 100_000_000, "patience": 100_000_000}
# Where files lie, how the work is spread, and what is only read from the numbers.
NOT_DECIDING = ("root", "workers", "device", "notes", "studies", "study_options")
FIT_KINDS: dict[str, type | None] = {
    "lam": float, "mu": float, "voxels": None, "seed": int, "tol": float, "memory": int, "verify": bool, "method": str,
    "trials": int, "learning_rate": float, "patience": int, "max_steps": int, "weight_decay": float,
}  # fmt: skip


@dataclass(frozen=True)
class Bootstrap:
    """The bootstrap of the intervals: it decides how results are summed up, not the results."""

    replicates: int = REPLICATES
    seed: int = 0
    level: float = LEVEL


@dataclass(frozen=True)
class Protocol:
    """What a benchmark does.

    Attributes:
        tasks: the tasks.
        pipelines: the pipelines.
        paper: whether the pipelines are a list of ours; then a pipeline that a task cannot have is left out, and not
            an error.
        split: how the cases of a task are divided where the task does not say.
        repeats: how often they are divided anew.
        seed: of the divisions.
        fit: how calibrators are fitted.
        metrics: names of metrics.
        bootstrap: how intervals are made.
        studies: names of studies; they read the results, and decide nothing about them.
        study_options: how much of them is done.
        root: where relative paths begin.
        workers: how many processes.
        device: where fits compute; not part of a file, since it belongs to a machine.
        notes: what was left out, in words.
    """

    tasks: tuple[Task, ...]
    pipelines: tuple[Pipeline, ...]
    paper: bool = False
    split: Division = field(default_factory=Division)
    repeats: int = 3
    seed: int = 0
    fit: FitConfig = field(default_factory=FitConfig)
    metrics: tuple[str, ...] = DEFAULT_METRICS
    bootstrap: Bootstrap = field(default_factory=Bootstrap)
    studies: tuple[str, ...] = USUAL
    study_options: Options = field(default_factory=Options)
    root: Path = Path()
    workers: int = 1
    device: str = "cpu"
    notes: tuple[str, ...] = ()

    def task(self, name: str) -> Task:
        """Return the task of this name."""
        return next(task for task in self.tasks if task.name == name)

    def division(self, task: Task) -> Division:
        """Return how the cases of a task are divided."""
        return self.split if task.split is None else task.split

    def to_plain(self) -> dict[str, Any]:
        """Return what decides the numbers, as plain data."""
        plain = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in NOT_DECIDING}
        plain["tasks"] = [asdict(task) for task in self.tasks]
        plain["pipelines"] = [pipeline.to_plain() for pipeline in self.pipelines]
        plain |= {"split": asdict(self.split), "fit": self.fit.to_dict(), "bootstrap": asdict(self.bootstrap)}
        return plain

    def hash(self) -> str:
        """Return a digest of everything that decides the numbers.

        >>> from dataclasses import replace
        >>> from segcal.benchmark.tasks import EmbeddedTask
        >>> from segcal.benchmark.pipelines import paper_pipelines
        >>> one = Protocol((EmbeddedTask("roads", "roads"),), paper_pipelines())
        >>> one.hash() == replace(one, workers=4).hash() != replace(one, seed=1).hash()
        True
        """
        return digest(self.to_plain())


def digest(plain: Mapping[str, Any]) -> str:
    """Return a short digest of plain data, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:16]


def load_protocol(path: str | Path, root: str | Path | None = None) -> Protocol:
    """Read a protocol.

    Args:
        path: the TOML file.
        root: where its relative paths begin; the folder of the file if not given.
    """
    file = Path(path)
    return parse_protocol(read_toml(file), file.parent if root is None else Path(root))


def parse_protocol(document: Mapping[str, Any], root: str | Path = ".") -> Protocol:
    """Read a protocol from the tables of a TOML document; see :func:`load_protocol`."""
    found = read_table(dict(document), "", KEYS)
    for key, (least, most) in BOUNDS.items():
        check_range(found.get(key, least), key, least, most)
    found["tasks"] = read_tasks(found.get("tasks"))
    listed = found.pop("pipelines", PAPER)
    pipelines, notes = _read_pipelines(listed)
    if "metrics" in found:
        found["metrics"] = tuple(dict.fromkeys(found["metrics"]))
        find_metrics(found["metrics"])
    if "split" in found:
        found["split"] = read_division(found["split"], "split")
    if "fit" in found:
        found["fit"] = _read_fit(found["fit"])
    if "bootstrap" in found:
        found["bootstrap"] = _read_bootstrap(found["bootstrap"])
    if "studies" in found:
        found["studies"] = read_studies(found["studies"])
    if "study_options" in found:
        found["study_options"] = read_options(found["study_options"])
    return Protocol(pipelines=pipelines, paper=isinstance(listed, str), notes=notes, root=Path(root), **found)


def _read_pipelines(listed: object) -> tuple[tuple[Pipeline, ...], tuple[str, ...]]:
    if isinstance(listed, str) and listed in LISTS:
        absent = () if listed == "more" else unknown_calibrators()
        note = f"left out of the paper's list, because this version does not have them: {', '.join(absent)}"
        return LISTS[listed](), (note,) if absent else ()
    if not isinstance(listed, list) or not listed:
        names = ", ".join(map(repr, LISTS))
        raise InputError(
            f"protocol has pipelines = {listed!r}, but one of {names}, or a list of tables, is needed. "
            'Write for example pipelines = [{pooling = "mean_probs", calibrator = "ts"}].'
        )
    pipelines = []
    for number, entry in enumerate(listed):
        where = f"pipelines[{number}]"
        table = read_table(entry, where, {"pooling": str, "calibrator": str, "options": dict})
        require(table, where, ["pooling", "calibrator"])
        pipelines.append(Pipeline.from_plain(table))
    return tuple(dict.fromkeys(pipelines)), ()


def _read_fit(table: object) -> FitConfig:
    found = read_table(table, "fit", FIT_KINDS)
    for key, value in found.items():
        if type(value) is int:
            check_range(value, f"fit.{key}", 0, FIT_BOUNDS.get(key, COUNT))
    return FitConfig(**found)


def _read_bootstrap(table: object) -> Bootstrap:
    bootstrap = Bootstrap(**read_table(table, "bootstrap", {"replicates": int, "seed": int, "level": float}))
    check_range(bootstrap.replicates, "bootstrap.replicates", 1, MOST_REPLICATES)
    check_range(bootstrap.seed, "bootstrap.seed", 0)
    if not 0 < bootstrap.level < 1:
        raise InputError(
            f"protocol has bootstrap.level = {bootstrap.level}, but a share between 0 and 1 is needed. Try 0.95."
        )
    return bootstrap
