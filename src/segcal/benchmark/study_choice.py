"""Which studies a protocol asks for, what each of them needs, and how much of it is done.

Those that read what the benchmark counted anyway, or each case a few times, are usual: they run unless the protocol
says otherwise. The others fit again, and run when they are named.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

from segcal.benchmark.reading import check_range, read_table
from segcal.errors import InputError


class StudyFacts(NamedTuple):
    """What a reader wants to know before a study is run.

    Attributes:
        shows: what it is about.
        needs: what a benchmark must have for it; "" for nothing in particular.
        costs: the time it takes.
        usual: whether it runs if the protocol names no studies.
    """

    shows: str
    needs: str
    costs: str
    usual: bool


STUDY_FACTS: dict[str, StudyFacts] = {
    "offsets": StudyFacts("Tables 3, 5 and Fig. 3", "logits", "reads every case once an ensemble size", True),
    "flips": StudyFacts("Fig. 4", "a pipeline that may flip", "reads the test cases of a repeat", True),
    "calibration_size": StudyFacts("Fig. 5", "", "fits and tests up to six pipelines again, for five sizes", False),
    "binning": StudyFacts("Fig. 6", "ece and ace among the metrics", "nothing", True),
    "domain_shift": StudyFacts("fitted here, tested elsewhere", "a test_on", "nothing", True),
    "covariate_shift": StudyFacts("Tables 6 and 7", "a corrupted copy in test_on", "reads one case", True),
    "reliability": StudyFacts("Fig. 8", "ace among the metrics", "nothing", True),
    "padding": StudyFacts("one-hot padding read as logits", "logits and masks", "fits and tests again", False),
    "worst_cases": StudyFacts("the case browser of the report", "", "reads the validation cases and six others", True),
    "regions": StudyFacts(
        "ECE of right, wrong, boundary, interior; entropy", "", "reads the test cases of a repeat", True
    ),
    "detection": StudyFacts("ECE by the share of mispredictions found", "", "counts the test cases of a repeat", False),
    "ensemble_size": StudyFacts("ECE and mIoU by members", "two members", "reads every case once a size", False),
    "crop_size": StudyFacts("ECE and mIoU by crop size", "embedded tasks", "predicts every case four times", False),
    "test_scales": StudyFacts("ECE and mIoU over scales", "embedded tasks", "predicts every case ten times", False),
    "model_size": StudyFacts("ECE and mIoU by model size", "study_options.model_sizes", "nothing", False),
}
USUAL = tuple(name for name, facts in STUDY_FACTS.items() if facts.usual)
ALL = "all"
LISTS = ("size_tasks", "padding_calibrators")


@dataclass(frozen=True)
class Options:
    """How much of the studies that read cases or fit again is done; the defaults are everything.

    Attributes:
        cases: at most so many cases a task, where a study reads cases anew.
        sizes: numbers of calibration cases; None: shares of the cases that are not for the test, as in the paper.
        size_tasks: tasks of the calibration-size study; None: all.
        padding_calibrators: calibrators of the padding study; None: all that the benchmark fitted on mean logits.
        model_sizes: how many parameters the model of a task has, by the name of the task.
    """

    cases: int | None = None
    sizes: tuple[int, ...] | None = None
    size_tasks: tuple[str, ...] | None = None
    padding_calibrators: tuple[str, ...] | None = None
    model_sizes: dict[str, int] | None = None


def read_studies(listed: object) -> tuple[str, ...]:
    """Read the studies of a protocol.

    >>> read_studies(["binning", "flips"])
    ('binning', 'flips')
    """
    if listed == ALL:
        return tuple(STUDY_FACTS)
    if not isinstance(listed, list):
        raise InputError(
            f"protocol has studies = {listed!r}, but {ALL!r} or a list of names is needed. "
            'Write for example studies = ["flips", "binning"].'
        )
    check_studies(listed)
    return tuple(dict.fromkeys(listed))


def check_studies(names: list[Any] | tuple[str, ...]) -> None:
    """Refuse a study that does not exist."""
    for name in names:
        if not isinstance(name, str) or name not in STUDY_FACTS:
            raise InputError(f"no study is named {name!r}. Choose one of: {', '.join(STUDY_FACTS)}.")


def read_options(table: object) -> Options:
    """Read the table `study_options` of a protocol."""
    where = "study_options"
    known = {"cases": int, "sizes": None, "model_sizes": dict, **dict.fromkeys(LISTS, list)}
    found = read_table(table, where, known)
    for name, size in found.get("model_sizes", {}).items():
        if type(size) is not int:
            raise InputError(
                f"protocol has {where}.model_sizes.{name} = {size!r}, but a whole number is needed. Change the value."
            )
        check_range(size, f"{where}.model_sizes.{name}", 1, 2**62)
    check_range(found.get("cases", 1), f"{where}.cases", 1)
    if "sizes" in found:
        sizes = found["sizes"]
        if not isinstance(sizes, list) or not sizes or not all(type(size) is int and size >= 1 for size in sizes):
            raise InputError(
                f"protocol has {where}.sizes = {sizes!r}, but whole numbers of at least 1 are needed. Change the value."
            )
    listed: dict[str, Any] = {key: tuple(found[key]) for key in ("sizes", *LISTS) if key in found}
    return Options(cases=found.get("cases"), model_sizes=found.get("model_sizes"), **listed)
