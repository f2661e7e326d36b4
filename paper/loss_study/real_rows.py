"""The rows of the study of losses on real data, from the lines of the study and nothing else.

Values of one patient, or of neighbouring frames, are averaged first; means have intervals over seeds and these groups,
which are the same for all seeds and are drawn so (:class:`paper.loss_study.draws.SharedDraws`).
A difference is clear where its interval leaves out zero. What losses differ by is the standard deviation of their
means, and a calibrator takes a share of it away.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import msgspec
import numpy as np

from paper.board import Row, counted, measured, number, write_rows
from paper.loss_study.draws import shared_draws
from paper.loss_study.measure import NONE
from paper.loss_study.real import LOSSES, POST_HOC, SHOWN, SIZES, WITH_DICE, RealRow
from paper.loss_study.rows import read_lines
from segcal.metrics import METRICS
from segcal.summary import Interval, difference, estimate

LINES = "real_losses.jsonl"
NAME = "losses_real"
BASELINE = "ce_dice"
CALIBRATION = ("nll", "ece", "ba_ece")
# How the columns call a network without a calibrator.
WHEN = {NONE: "as trained"} | {name: name for name in POST_HOC}
COLUMNS = (("dice", NONE), *((metric, pipeline) for metric in CALIBRATION for pipeline in WHEN))
TITLES = {"cardiac": "cardiac volumes", "camvid": "street scenes"}


class Facts(msgspec.Struct, frozen=True):
    """What made the numbers."""

    device: str
    torch: str
    seconds: int
    missing: int
    recorded: bool


@dataclass(frozen=True)
class Table:
    """The networks of one task and size.

    Attributes:
        task: its name.
        size: of the networks.
        rows: by loss and seed.
    """

    task: str
    size: str
    rows: Mapping[tuple[str, int], RealRow]
    _columns: dict[tuple[str, ...], list[np.ndarray]] = field(default_factory=dict, repr=False)
    _intervals: dict[tuple[str, ...], Interval] = field(default_factory=dict, repr=False)

    @property
    def title(self) -> str:
        """Return what the table is called."""
        return f"{TITLES[self.task].capitalize()}, {self.size} networks"

    @cached_property
    def seeds(self) -> list[int]:
        """Return the seeds that all losses of the table have."""
        losses = {loss for loss, _ in self.rows}
        every = sorted({seed for _, seed in self.rows})
        return [seed for seed in every if all((loss, seed) in self.rows for loss in losses)]

    @cached_property
    def losses(self) -> list[str]:
        """Return the losses that have every seed, in the order of the study."""
        return [loss for loss in LOSSES if all((loss, seed) in self.rows for seed in self.seeds)]

    def columns(self, loss: str, pipeline: str, metric: str) -> list[np.ndarray]:
        """Return the means of the groups, one array per seed."""
        key = (loss, pipeline, metric)
        if key not in self._columns:
            rows = [self.rows[loss, seed] for seed in self.seeds]
            self._columns[key] = [_group_means(row, pipeline, metric) for row in rows]
        return self._columns[key]

    def mean(self, loss: str, pipeline: str, metric: str) -> Interval:
        """Return the mean of a loss."""
        key = (loss, pipeline, metric)
        if key not in self._intervals:
            values = self.columns(*key)
            self._intervals[key] = estimate(values, shared_draws(values))
        return self._intervals[key]

    def gap(self, loss: str, base: str, pipeline: str, metric: str) -> Interval:
        """Return the paired difference of two losses."""
        key = (loss, base, pipeline, metric)
        if key not in self._intervals:
            first, second = (self.columns(each, pipeline, metric) for each in (base, loss))
            self._intervals[key] = _gap(first, second, metric)
        return self._intervals[key]

    def spread(self, pipeline: str, metric: str) -> float:
        """Return the standard deviation of the losses' means."""
        means = [self.mean(loss, pipeline, metric).value for loss in self.losses]
        return float(np.std([value for value in means if value is not None]))


def read_real(sources: Sequence[Path]) -> tuple[list[RealRow], list[Facts]]:
    """Return the networks of files of lines and what made them; the first of equal names counts."""
    rows, facts = read_lines(sources)
    return msgspec.convert(rows, list[RealRow]), msgspec.convert(facts, list[Facts])


def tables_of(rows: Sequence[RealRow]) -> list[Table]:
    """Return the tables for which the baseline is there, small networks first."""
    found = []
    for size in SIZES:
        for task in TITLES:
            mine = {(r.unit.loss, r.unit.seed): r for r in rows if (r.unit.task, r.unit.size) == (task, size)}
            if any(loss == BASELINE for loss, _ in mine):
                found.append(Table(task, size, _complete(mine)))
    return found


def _complete(rows: dict[tuple[str, int], RealRow]) -> dict[tuple[str, int], RealRow]:
    """Leave out what would cost a seed of the others: losses with fewer seeds than the baseline has."""
    seeds = {seed for loss, seed in rows if loss == BASELINE}
    full = {loss for loss, _ in rows if all((loss, seed) in rows for seed in seeds)}
    return {key: row for key, row in rows.items() if key[0] in full and key[1] in seeds}


def write_real_rows(sources: Sequence[Path], folder: Path) -> Path:
    """Write the rows of the board."""
    return write_rows(NAME, real_rows(*read_real(sources)), folder)


def real_rows(rows: Sequence[RealRow], facts: Sequence[Facts]) -> Iterator[Row]:
    """Yield every number of the study."""
    tables = tables_of(rows)
    yield from _about(rows, facts)
    for table in tables:
        yield from _losses(table)
        yield from _spreads(table)
        yield from _dice_terms(table)
        yield from _best(table)
    yield from _counts(tables)
    yield from _sizes(tables)


def _about(rows: Sequence[RealRow], facts: Sequence[Facts]) -> Iterator[Row]:
    counts = {"networks": len(rows), "networks missing": sum(one.missing for one in facts)}
    counts["networks in which a calibrator could not be fitted"] = sum(bool(row.failed) for row in rows)
    counts["minutes"] = round(sum(one.seconds for one in facts) / 60)
    yield from counted("all tasks", "the study", counts)
    for task, title in TITLES.items():
        own = [row for row in rows if row.unit.task == task]
        if own:
            found = {"steps": max(row.steps for row in own), "test cases": max(len(row.groups) for row in own)}
            yield from counted(title, "the study", found | {"groups": max(len(set(row.groups)) for row in own)})


def _losses(table: Table) -> Iterator[Row]:
    """Yield the means of every loss, and its paired difference from the baseline."""
    for loss in table.losses:
        for metric, pipeline in COLUMNS:
            title = _title(metric, pipeline)
            yield from measured(table.title, loss, title, table.mean(loss, pipeline, metric))
            if loss != BASELINE:
                gap = table.gap(loss, BASELINE, pipeline, metric)
                yield from measured(table.title, f"{loss} against {BASELINE}", title, gap, note=_clear(gap, metric))


def _spreads(table: Table) -> Iterator[Row]:
    """Yield the standard deviation of the losses' means, and what calibration leaves of it."""
    for metric in CALIBRATION:
        before = table.spread(NONE, metric)
        for pipeline in WHEN:
            title = f"{_title(metric, pipeline)}, standard deviation of the means"
            value = table.spread(pipeline, metric)
            yield Row(table.title, "all losses", title, number(value))
            if pipeline != NONE:
                yield Row(table.title, "all losses", f"{title}, share left, %", number(100 * value / before, ".0f"))


def _dice_terms(table: Table) -> Iterator[Row]:
    """Yield what the Dice term does: the loss with it minus the same loss without."""
    for loss in table.losses:
        plain = loss.removesuffix(WITH_DICE)
        if plain != loss and plain in table.losses:
            for metric, pipeline in COLUMNS:
                gap = table.gap(loss, plain, pipeline, metric)
                pair = f"{loss} against {plain}"
                yield from measured(table.title, pair, _title(metric, pipeline), gap, note=_clear(gap, metric))


def _best(table: Table) -> Iterator[Row]:
    """Yield the baseline with the last calibrator minus the loss that is best as trained."""
    for metric in ("nll", "ba_ece"):
        value = {loss: table.mean(loss, NONE, metric).value for loss in table.losses}
        best = min((loss for loss in table.losses if value[loss] is not None), key=lambda loss: value[loss] or 0.0)
        gap = _gap(table.columns(best, NONE, metric), table.columns(BASELINE, POST_HOC[-1], metric), metric)
        pair = f"{BASELINE} with {POST_HOC[-1]} against the best as trained"
        yield from measured(table.title, pair, SHOWN[metric], gap, note=f"{best}; {_clear(gap, metric)}")


def _counts(tables: Sequence[Table]) -> Iterator[Row]:
    """Yield how often the Dice term, and how often the loss, makes a clear difference; and who is never worse."""
    pairs = [(t, loss) for t in tables for loss in t.losses if loss.removesuffix(WITH_DICE) != loss]
    pairs = [(table, loss) for table, loss in pairs if loss.removesuffix(WITH_DICE) in table.losses]
    for metric, pipeline in COLUMNS:
        found = Counter(_judged(t, loss, loss.removesuffix(WITH_DICE), pipeline, metric) for t, loss in pairs)
        counts = {"clearly better": found["better"], "clearly worse": found["worse"], "pairs": len(pairs)}
        named = {f"{_title(metric, pipeline)}, {words}": count for words, count in counts.items()}
        yield from counted("all tables", "the Dice term", named)
    others = [(table, loss) for table in tables for loss in table.losses if loss != BASELINE]
    for metric, pipeline in COLUMNS:
        differ = sum(_judged(table, loss, BASELINE, pipeline, metric) is not None for table, loss in others)
        words = f"{_title(metric, pipeline)}, losses that differ clearly from {BASELINE}"
        yield from counted("all tables", "the loss", {words: differ})
    yield from counted("all tables", "the loss", {"losses compared": len(others)})
    for loss in (one for one in LOSSES if one != BASELINE and all(one in table.losses for table in tables)):
        judged = [_judged(table, loss, BASELINE, p, m) for table in tables for m, p in COLUMNS]
        counts = {"clearly better": judged.count("better"), "clearly worse": judged.count("worse")}
        named = {f"columns {words} than {BASELINE}": count for words, count in counts.items()}
        yield from counted("all tables", loss, named | {"columns": len(judged)})


def _sizes(tables: Sequence[Table]) -> Iterator[Row]:
    """Yield large networks minus small ones, and how often a metric moves."""
    by_key = {(table.task, table.size): table for table in tables}
    for task, title in TITLES.items():
        pair = [by_key.get((task, size)) for size in SIZES]
        small, large = pair[0], pair[-1]
        if small is None or large is None or small.seeds != large.seeds:
            continue
        losses = [loss for loss in large.losses if loss in small.losses]
        yield from counted(title, "large networks", {"losses": len(losses)})
        for metric, pipeline in COLUMNS:
            both = [(small.columns(loss, pipeline, metric), large.columns(loss, pipeline, metric)) for loss in losses]
            gaps = [_gap(first, second, metric) for first, second in both]
            for loss, gap in zip(losses, gaps, strict=True):
                pair_title = f"{loss}, large against small networks"
                yield from measured(title, pair_title, _title(metric, pipeline), gap, note=_clear(gap, metric))
            for word, sign in (("higher", 1), ("lower", -1)):
                moved = [gap for gap in gaps if gap.value is not None and sign * gap.value > 0]
                counts = {word: len(moved), f"clearly {word}": sum(map(is_clear, moved))}
                named = {f"{_title(metric, pipeline)}, losses {words}": count for words, count in counts.items()}
                yield from counted(title, "large networks", named)


def _title(metric: str, pipeline: str) -> str:
    return SHOWN[metric] if metric == "dice" else f"{SHOWN[metric]} {WHEN[pipeline]}"


def _clear(gap: Interval, metric: str) -> str:
    if not is_clear(gap) or gap.value is None:
        return "no clear difference"
    return "better" if (gap.value > 0) == (METRICS[metric].better == "higher") else "worse"


def _judged(table: Table, loss: str, base: str, pipeline: str, metric: str) -> str | None:
    """Return "better" or "worse" where a loss differs clearly from another."""
    word = _clear(table.gap(loss, base, pipeline, metric), metric)
    return word if word in ("better", "worse") else None


def _gap(first: Sequence[np.ndarray], second: Sequence[np.ndarray], metric: str) -> Interval:
    """Return the paired difference, the second minus the first."""
    return difference(first, second, shared_draws(first), METRICS[metric].better)


def is_clear(gap: Interval) -> bool:
    """Return whether an interval leaves out zero."""
    return gap.low is not None and gap.high is not None and (gap.low > 0 or gap.high < 0)


def _group_means(row: RealRow, pipeline: str, metric: str) -> np.ndarray:
    values, groups = np.array(row.values.get(pipeline, row.values[NONE])[metric], float), np.array(row.groups)
    return np.array([_mean(values[groups == group]) for group in sorted(set(row.groups))])


def _mean(values: np.ndarray) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")
