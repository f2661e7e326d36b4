"""What the demonstration does: a protocol on the embedded tasks, small enough for minutes, or all of it."""

from dataclasses import dataclass

from segcal.benchmark.pipelines import Pipeline, paper_pipelines
from segcal.benchmark.protocol import Protocol
from segcal.benchmark.protocol import StudyOptions as Options
from segcal.benchmark.tasks import Division, EmbeddedTask
from segcal.fitting import FitConfig
from segcal.studies import STUDIES as STUDY_FACTS
from segcal.studies.document import UNCALIBRATED

SINGLE = Pipeline("single", "identity")
MEAN_PROBS = Pipeline("mean_probs", "identity")
QUICK_CALIBRATORS = ("ts", "ms", "dc", "cdc", "cms_ap", "cms_op")
QUICK_STUDIES = (
    "offsets", "flips", "calibration_size", "binning", "domain_shift", "covariate_shift", "reliability", "padding",
    "worst_cases",
)  # fmt: skip
# Calibration, validation and test cases; the volumes of tumour take longest to predict.
QUICK_SPLITS = {"roads": Division(10, 5, 15), "tumour": Division(10, 5, 10), "streets": Division(10, 5, 20)}
FULL_SPLIT = Division(50, 25, 45)
# Tasks whose images are pictures, which can be corrupted.
PICTURES = ("roads", "streets")


@dataclass(frozen=True)
class Plan:
    """A demonstration: the protocol of its benchmark, and one sentence for each part that is less than everything."""

    protocol: Protocol
    reduced: tuple[str, ...]


def quick_plan(workers: int = 1) -> Plan:
    """Return a demonstration that two cores finish in under three minutes."""
    tasks = [
        EmbeddedTask(name, name, cases=_cases(split), split=split, test_on=_targets(name, ("strong",), ("streets",)))
        for name, split in QUICK_SPLITS.items()
    ]
    copies = [_copy("streets", "strong", _cases(QUICK_SPLITS["streets"]))]
    fitted = tuple(Pipeline("mean_logits", name) for name in QUICK_CALIBRATORS)
    protocol = Protocol(
        tasks=(*tasks, *copies),
        pipelines=(SINGLE, MEAN_PROBS, UNCALIBRATED, *fitted),
        repeats=1,
        fit=FitConfig(voxels=3000),
        studies=QUICK_STUDIES,
        study_options=Options(
            cases=3, sizes=(2,), size_tasks=("roads",), padding_calibrators=("identity", "ts", "ms", "cms_ap")
        ),
        workers=workers,
    )
    reduced = (
        "one division of the cases into calibration, validation and test instead of three",
        "10 calibration, 5 validation and 10 to 20 test cases per task instead of 50, 25 and 45",
        "3,000 voxels per case in the fits instead of 20,000",
        f"calibrators on mean logits only, and of them {', '.join(QUICK_CALIBRATORS)}",
        "corrupted pictures of streets at one strength instead of roads and streets at two",
        "offsets and flips in detail on 3 cases per task; calibration-set size on roads with 2 sizes; padding with 4 "
        "calibrators",
    )
    missing = ", ".join(name for name in STUDY_FACTS if name not in QUICK_STUDIES)
    return Plan(protocol, (*reduced, f"without the studies {missing}") if missing else reduced)


def full_plan(workers: int = 1) -> Plan:
    """Return the whole demonstration: the paper's pipelines, three repeats, all studies."""
    count = _cases(FULL_SPLIT)
    strengths = ("mild", "strong")
    tasks = [
        EmbeddedTask(name, name, cases=count, split=FULL_SPLIT, test_on=_targets(name, strengths, PICTURES))
        for name in QUICK_SPLITS
    ]
    copies = [_copy(name, strength, count) for name in PICTURES for strength in strengths]
    protocol = Protocol(
        tasks=(*tasks, *copies),
        pipelines=paper_pipelines(),
        paper=True,
        repeats=3,
        studies=tuple(STUDY_FACTS),
        workers=workers,
    )
    return Plan(protocol, ())


def _cases(split: Division) -> int:
    return split.cal + split.val + (split.test or 0)


def _copy(name: str, strength: str, cases: int) -> EmbeddedTask:
    return EmbeddedTask(f"{name}_{strength}", name, cases=cases, corruption=strength, test_only=True)


def _targets(name: str, strengths: tuple[str, ...], pictures: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"{name}_{strength}" for strength in strengths) if name in pictures else ()
