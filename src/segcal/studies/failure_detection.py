"""Failed cases, found without labels: by calibrated and uncalibrated estimates, in distribution and under shift.

Cases are ranked without labels, before calibration and with the pipeline that ``segcal fit`` would choose. They are the
test cases of the first repeat and of every `test_on`. The table has the area under the risk-coverage curveand its
excess over the best ranking. It also has the paired difference of the area to that of the expected Dice after
calibration. There is also the AUROC of finding cases with a Dice below tau.

The risk of a case is 1 - Dice, the mean over its structures that are there or were found. Ranked from the most trusted
down, the mean risk of the first k cases, averaged over k, is the area under the risk-coverage curve (AURC). What it is
above that of a ranking by the risk itself is the excess. A mask is bad if its Dice is below tau: AUROC is the chance
that a bad case is trusted less than a good one. The sum of the first k risks, divided by all
cases instead of k, has the generalised area (AUGRC, Traub et al. 2024). The expected Dice without members is the soft
Dice confidence (SDC) of Borges et al. (2024), mean over structures.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from segcal.benchmark.tasks import Task
from segcal.calibrators.base import Calibrator
from segcal.calibrators.temperature import Identity
from segcal.cases.base import Cases
from segcal.report.table import Cell, Column, Table
from segcal.resample import Draws, defined_mean, percentile_interval
from segcal.studies.study import NothingToStudyError, Setting, Study, choose_default, interval_cell
from segcal.summary import Bootstrap, Interval
from segcal.trust.estimates import Floats, SumTable, expected_dice
from segcal.trust.learn import Summer

TAU = 0.7
OURS = "expected Dice, after"
FEWEST = 2


def risk_of(table: SumTable, classes: Sequence[int]) -> Floats:
    """Return the risk of each labelled case; NaN where no structure is there and none was found."""
    absent = table.empty & (table.truth == 0)
    return 1 - defined_mean(np.where(absent, np.nan, table.dice)[:, list(classes)], axis=1)


def rankings(table: SumTable, classes: Sequence[int]) -> dict[str, Floats]:
    """Return, for each way to rank cases, one number per case; the lowest is trusted least.

    Ways that need members are left out where they are not known. A case without a mask has the number 0.
    """
    there = np.where(table.empty, np.nan, 1.0)[:, list(classes)]

    def mean(values: Floats) -> Floats:
        return np.nan_to_num(defined_mean(values[:, list(classes)] * there, axis=1))

    found = {
        "expected Dice": mean(table.expected_dice),
        "mean confidence in the mask": mean(table.precision),
        "mean confidence at the edge": mean(table.edge_confidence),
        "mean confidence": table.hit.sum(1) / table.voxels,
        "negative entropy": -table.entropy / table.voxels,
    }
    if not np.isnan(table.agreement).all():
        found["expected Dice and members"] = mean(expected_dice(table))
        found["agreement of members"] = mean(table.agreement)
    return found


def risk_area(trusted: Floats, risk: Floats) -> float:
    """Return the area under the risk-coverage curve.

    >>> risk_area(np.array([3.0, 1.0, 2.0]), np.array([0.0, 0.6, 0.3]))
    0.15
    """
    ordered = risk[np.argsort(-trusted, kind="stable")]
    return float((np.cumsum(ordered) / np.arange(1, len(risk) + 1)).mean())


def generalised_area(trusted: Floats, risk: Floats) -> float:
    """Return the area under the generalised risk-coverage curve, by trapezoids through the origin.

    >>> round(generalised_area(np.array([3.0, 1.0, 2.0]), np.array([0.0, 0.6, 0.3])), 4)
    0.0833
    """
    ordered = risk[np.argsort(-trusted, kind="stable")]
    return float((np.cumsum(ordered) - ordered / 2).sum()) / len(risk) ** 2


def auroc(trusted: Floats, bad: NDArray[np.bool_]) -> float | None:
    """Return the chance that a bad case is trusted less than a good one, ties half; None without both kinds.

    >>> auroc(np.array([0.1, 0.5, 0.5, 0.9]), np.array([True, True, False, False]))
    0.875
    """
    if bad.all() or not bad.any():
        return None
    gaps = trusted[~bad][:, None] - trusted[bad]
    return float(((gaps > 0) + 0.5 * (gaps == 0)).mean())


class FailureRow(Struct):
    """One way to rank cases; None is not defined."""

    area: float
    excess: float
    against: Interval
    auroc: float | None
    generalised: float | None = None


class FailurePlace(Struct):
    """The ways to rank the cases of one site, and how many cases and bad ones there are."""

    cases: int
    bad: int
    ways: dict[str, FailureRow]


class FailureData(Struct):
    """By task, or task and site, the rankings."""

    tau: float
    places: dict[str, FailurePlace]


def _run(setting: Setting) -> FailureData:
    """Rank the test cases of every task, and those of the sites it was tested on."""
    places: dict[str, FailurePlace] = {}
    for task in setting.tasks:
        if not setting.pipelines(task.name, "mean_logits"):
            continue
        chosen = setting.calibrator(task, choose_default(setting, task)[0])
        for title, cases, background in _places(setting, task):
            if found := rank(cases, chosen, background, setting.summary.bootstrap):
                places[title] = found
    if not places:
        raise NothingToStudyError(f"no task has mean logits and {FEWEST} labelled test cases")
    return FailureData(TAU, places)


def _places(setting: Setting, task: Task) -> Iterator[tuple[str, Cases, bool]]:
    tested = setting.split(task, "mean_logits").test
    own = setting.protocol.open(task, "mean_logits").background
    yield task.name, setting.some(tested), own
    for name in task.test_on:
        cases = setting.protocol.open(setting.protocol.task(name), "mean_logits").cases
        shared = [case_id for case_id in cases.ids if case_id in tested.ids]
        yield f"{task.name} to {name}", setting.some(cases.subset(shared or cases.ids)), own


def rank(cases: Cases, calibrator: Calibrator, background: bool, bootstrap: Bootstrap) -> FailurePlace | None:
    """Return how well each way ranks labelled cases; None if there are too few."""
    own = cases.with_disagreement()
    stages = {"before": Identity(cases.num_classes), "after": calibrator}
    sums = [Summer(own, list(stages.values()))(case_id) for case_id in own.ids]
    tables = {name: SumTable.of(column) for name, column in zip(stages, zip(*sums, strict=True), strict=True)}
    classes = range(1 if background else 0, cases.num_classes)
    risk = risk_of(tables["after"], classes)
    kept = np.flatnonzero(~np.isnan(risk))
    if len(kept) < FEWEST:
        return None
    ways = {
        f"{way}, {stage}": values[kept]
        for stage, table in tables.items()
        for way, values in rankings(table, classes).items()
        if stage == "after" or way != "agreement of members"  # members do not change
    }
    groups = [tables["after"].groups[i] for i in kept]
    judged = judge_ways(ways, risk[kept], bootstrap.draws([groups]), bootstrap.level)
    return FailurePlace(len(kept), int((risk[kept] > 1 - TAU).sum()), judged)


def judge_ways(ways: Mapping[str, Floats], risk: Floats, draws: Draws, level: float) -> dict[str, FailureRow]:
    """Return the numbers of each way, the best first."""
    drawn = [np.repeat(np.arange(len(risk)), row.astype(int)[draws.index[0]]) for row in draws.weights]
    ours = np.array([risk_area(ways[OURS][own], risk[own]) for own in drawn])
    found, best = {}, risk_area(-risk, risk)
    for name, values in sorted(ways.items(), key=lambda each: risk_area(each[1], risk)):
        area, gaps = risk_area(values, risk), np.array([risk_area(values[own], risk[own]) for own in drawn]) - ours
        against = Interval(area - risk_area(ways[OURS], risk), *percentile_interval(gaps, level, draws.groups))
        general = generalised_area(values, risk)
        found[name] = FailureRow(area, area - best, against, auroc(values, risk > 1 - TAU), general)
    return found


def _tables(data: FailureData) -> dict[str, Table]:
    columns = (
        Column("AURC", digits=4, better="lower"),
        Column("above the best", digits=4, better="lower"),
        Column(f"minus {OURS}", digits=4),
        Column(f"AUROC, Dice < {data.tau:g}", better="higher"),
        Column("AUGRC", digits=4, better="lower"),
    )
    titled = {f"{place} ({one.cases} cases, {one.bad} bad)": one.ways for place, one in data.places.items()}
    note = "Cases ranked without labels; risk is 1 - Dice, the mean over structures. Paired over groups."
    title = "Finding cases that failed"
    return {"failure_detection": Table.of(title, columns, titled, _cells, note, first="Ranked by", apart=True)}


def _cells(row: FailureRow) -> tuple[Cell, ...]:
    return Cell(row.area), Cell(row.excess), interval_cell(row.against), Cell(row.auroc), Cell(row.generalised)


STUDY = Study(
    "finding failed cases without labels: AURC, AUGRC, AUROC, before and after, here and under shift", "mean logits",
    "reads the test cases of a repeat, and of each `test_on`, twice", False,
    _run, FailureData, _tables,
)  # fmt: skip
