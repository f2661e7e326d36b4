"""Which studies a protocol asks for, what each of them needs, and how much of it is done.

Those that read what the benchmark counted anyway, or each case a few times, are usual: they run unless the protocol
says otherwise. The others fit again, and run when they are named.
"""

from typing import Any, NamedTuple

from segcal.benchmark.protocol import StudyOptions as Options  # noqa: F401
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


def check_studies(names: list[Any] | tuple[str, ...]) -> None:
    """Refuse a study that does not exist."""
    for name in names:
        if not isinstance(name, str) or name not in STUDY_FACTS:
            raise InputError(f"no study is named {name!r}. Choose one of: {', '.join(STUDY_FACTS)}.")
