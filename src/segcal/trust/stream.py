"""A watch over a stream of new cases, without labels: which are unusual, and whether the calibrator still applies.

Every group (or case without one) is compared with the reference and all earlier groups of the stream
(:mod:`segcal.trust.atypical`). The p-values are weighed one after the other (:mod:`segcal.trust.drift`). A group is
kept as a row of numbers, in one file that is written anew after each of them. An interrupted run goes on where it was,
and cases in the file are not counted twice.
"""

import math
import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import torch

from segcal.arguments import typed
from segcal.calibrators.base import Calibrator
from segcal.cases.base import CaseError, Cases
from segcal.cases.parallel import Workers
from segcal.documents import read_json, write_json
from segcal.errors import ArtifactError, InputError
from segcal.evaluation.evaluate import in_groups_of
from segcal.fitting.certificate import Fitted
from segcal.fitting.division import group_names
from segcal.fitting.fit import check_device
from segcal.fitting.reference import Reference, read_numbers, written_numbers
from segcal.names import class_titles
from segcal.target import claim_beside
from segcal.trust.alarms import STREAM_RATE, Alarms, reference_digest, smoothing
from segcal.trust.atypical import Compositions, atypical_p, column_p, most_unusual, rank_p, statistics_of
from segcal.trust.drift import StreamEvidence, weigh
from segcal.trust.entry import Failed, Progress, enter, known_reference, walk
from segcal.trust.estimates import Floats, SumTable, expected_dice
from segcal.trust.learn import Summer
from segcal.trust.sums import CaseSums

RATE = 0.05
# 1 had numbers with other digits than the reference, which made unchanged groups look atypical.
VERSION = 2


class StreamDraw(msgspec.Struct):
    """One group of the stream.

    Attributes:
        name: of its group, or of its case.
        cases: its cases.
        numbers: its statistics.
        p: its p-value among the reference and the groups before it, ties broken by a digest of its name.
        each_p: such p-values of its statistics one by one.
        rarity: its p-value among the reference alone, never too small.
        unusual: the statistic in which it differs most from the reference, and by how many deviations.
        deviation: see `unusual`.
        expected_dice: the mean over its structures that have a mask; None without any.
        apart_p: as `p`, of its composition alone; 1, which says nothing, in a file of an older segcal.
    """

    name: str
    cases: list[str]
    numbers: str
    p: float
    each_p: str
    rarity: float
    unusual: str
    deviation: float
    expected_dice: float | None
    apart_p: float = 1.0

    def words(self) -> tuple[str, str, str]:
        """Return its cases, its rarity, and in what it differs most."""
        return ", ".join(self.cases), f"{self.rarity:.2g}", f"{self.unusual} ({self.deviation:+.1f} deviations)"


class StreamState(msgspec.Struct, kw_only=True):
    """The file: which reference it belongs to, and all groups so far."""

    format: Literal["segcal-monitor"] = "segcal-monitor"
    version: int = VERSION
    reference: str
    draws: list[StreamDraw]


@dataclass(frozen=True)
class Monitored:
    """The result of watching a stream.

    Attributes:
        draws: all groups so far, in their order.
        new: how many of them this call added.
        evidence: of a drift, after each group, as a logarithm.
        drifted_at: the group at which the evidence was enough; None if it is not.
        since: the group with which the drift began.
        statistic: in which the stream differs most since then.
        deviation: by how many deviations of the reference.
        expected_dice: the mean over the stream since then, or over all of it without a drift.
        reference_dice: the same of the reference.
        reference_draws: how many groups the reference has.
        rate: of unusual cases that is stated for single groups.
        stream_rate: the chance of a false alarm, ever.
        verdict: all this in words.
        alarms: in words, classes with little evidence that became frequent, and cases that left what was seen.
        known: how many groups of this call were in the file already, and were left out.
    """

    draws: list[StreamDraw]
    new: int
    evidence: list[float]
    drifted_at: str | None
    since: str | None
    statistic: str | None
    deviation: float | None
    expected_dice: float | None
    reference_dice: float | None
    reference_draws: int
    rate: float
    stream_rate: float
    verdict: str
    alarms: list[str] = field(default_factory=list)
    known: int = 0

    @property
    def unusual(self) -> list[StreamDraw]:
        """The groups that are rarer than the rate."""
        return [draw for draw in self.draws if draw.rarity <= self.rate]

    @property
    def applies(self) -> bool:
        """Whether the calibrator still applies, as far as the stream says."""
        return self.drifted_at is None

    @property
    def limit(self) -> str:
        """The limit of a small reference, in which no single group can be rare enough to be unusual; "" of others."""
        needed = math.ceil(1 / self.rate - 1 - 1e-9)
        if self.reference_draws >= needed:
            return ""
        return (
            f"the reference has {self.reference_draws} groups, so that no single one is ever called unusual: a rate of "
            f"{self.rate:g} needs {needed}; only the stream as a whole is watched"
        )

    @property
    def left_out(self) -> str:
        """Sentence on groups that were left out because the file has them; "" without any."""
        return f"{self.known} already known by name and left out, also if their files have changed" * bool(self.known)

    def __str__(self) -> str:
        unusual = [f"unusual: {', p '.join(draw.words()[:2])}, most in {draw.words()[2]}" for draw in self.unusual]
        return "\n".join(filter(None, (*unusual, self.left_out, self.limit, self.verdict)))


@typed
def monitor(
    fitted: Fitted | str | os.PathLike[str],
    cases: Any,
    state: str | os.PathLike[str] | None = None,
    *,
    rate: float = RATE,
    stream_rate: float = STREAM_RATE,
    background: bool = True,
    device: str | torch.device | None = None,
    workers: Workers = 1,
    failed: Callable[[CaseError], None] | None = None,
    progress: Callable[[str], None] | None = None,
    **declared: Any,
) -> Monitored:
    """Compare new cases with the reference of a calibrator, one after the other in the order of their ids.

    Args:
        fitted: what :func:`segcal.learn_trust` returned, or the folder of a calibrator that ``segcal fit`` wrote.
        cases: new cases, or arrays as :func:`segcal.cases.as_cases` takes them; labels are not needed. Cases of one
            group count as one.
        state: a file that keeps the stream between calls; nothing is kept if it is not given.
        rate: of single groups that are called unusual though they are not.
        stream_rate: the chance that the stream as a whole is ever called drifted though it is not.
        background: whether class 0 is background, and has no expected Dice.
        device: where to calibrate; the CPU if not given.
        workers: how many processes work on cases.
        failed: takes the error of a case that is not usable, which is then left out; without it the error is raised.
        progress: called with the id of each case when it is done.
        declared: what is known of arrays, such as `kind`.
    """
    for name, value in (("rate", rate), ("stream_rate", stream_rate)):
        if not 0 < value < 1:
            raise InputError(f"{name} is {value:g}, but a chance between 0 and 1 is needed. Use 0.01 for 1 in 100.")
    known, reference, opened = enter(fitted, known_reference, cases, declared)
    opened = in_groups_of(known, opened)
    # A new case has no rater: of labelled ones one row each.
    reference = msgspec.structs.replace(reference, cases=tuple({each.id: each for each in reference.cases}.values()))
    if len({each.group for each in reference.cases}) < len(reference.cases) and not opened.groups:
        raise InputError(
            f"the reference has {len(reference.cases)} cases in groups, which are compared as one, but the new cases "
            "have none. Declare theirs with groups=, as for the fit."
        )
    target = None if state is None else Path(state).resolve()  # where a link leads, it stays
    if target is not None and target.is_dir():
        raise InputError(f"{state} is a folder, but the stream is kept in a file. Name one, such as state.json.")
    with nullcontext() if target is None else claim_beside(target):
        watch = _Watch(known, reference, target, background)
        before, seen = len(watch.draws), watch.seen()
        names = zip(opened.ids, group_names(opened, opened.ids), strict=True)
        skipped = {group for case_id, group in names if case_id in seen or group in seen}
        calibrator = known.calibrator.to(check_device(device))
        for name, sums in _draws(opened, seen, calibrator, workers, failed, progress):
            watch.add(name, sums)
    return replace(watch.result(before, rate, stream_rate), known=len(skipped))


def _draws(
    cases: Cases, seen: set[str], calibrator: Calibrator, workers: Workers, failed: Failed, progress: Progress
) -> Iterator[tuple[str, list[CaseSums]]]:
    """Yield the sums of groups, one after the other, of which no case was seen; the first case gives its position."""
    groups = dict(zip(cases.ids, group_names(cases, cases.ids), strict=True))
    members: dict[str, list[str]] = {}
    for case_id, group in groups.items():
        if case_id not in seen and group not in seen:
            members.setdefault(group, []).append(case_id)
    ids = [case_id for own in members.values() for case_id in own]
    found = walk(ids, Summer(cases.with_disagreement(), [calibrator]), workers, failed, progress)
    for group, draw in groupby(found, key=lambda each: groups[each[0]]):
        yield group, [sums for _, (sums,) in draw]


class _Watch:
    """The reference, and a stream that grows."""

    def __init__(self, fitted: Fitted, reference: Reference, path: Path | None, background: bool) -> None:
        self._titles = class_titles(fitted.class_names, len(reference.curves))
        self._first, self._path = 1 if background else 0, path
        table = SumTable.read(reference)
        self._known = statistics_of(table, self._titles)
        self._touching = not np.isnan(table.beside).all()  # older references do not know which classes touch
        self._dice = _mean_dice(table, self._first)
        self._digest = reference_digest(reference)
        self._alarms = Alarms.of(fitted, self._known, self._titles)
        self.draws = [] if path is None or not path.exists() else read_state(path, self._digest)
        self._rows: list[Floats] = [read_numbers(draw.numbers, len(self._known.names)) for draw in self.draws]
        self._seen = Compositions(self._alarms.frequencies(self._known.rows))
        for row in self._rows:
            self._seen.scores(self._alarms.frequencies(row), keep=True)

    def seen(self) -> set[str]:
        """Return the cases and groups that are in the stream."""
        return {name for draw in self.draws for name in (draw.name, *draw.cases)}

    def add(self, name: str, sums: list[CaseSums]) -> None:
        """Weigh a group and keep it."""
        table = SumTable.of([replace(each, group=name) for each in sums])
        table = table if self._touching else replace(table, beside=np.full_like(table.beside, np.nan))
        row = statistics_of(table, self._titles).rows[0]
        smooth = smoothing(self._digest, name)
        unusual, deviation = most_unusual(self._known.rows, row[None], self._known.names)
        before = np.vstack([self._known.rows, *self._rows])
        self.draws.append(
            StreamDraw(
                name=name,
                cases=[each.case for each in sums],
                numbers=written_numbers(row),
                p=atypical_p(before, row, smooth),
                each_p=written_numbers(column_p(before, row, smooth)),
                rarity=atypical_p(self._known.rows, row),
                unusual=unusual,
                deviation=deviation,
                expected_dice=_mean_dice(table, self._first),
                apart_p=rank_p(self._seen.scores(self._alarms.frequencies(row), keep=True), smooth),
            )
        )
        self._rows.append(row)
        if self._path is not None:
            write_state(self._path, self._digest, self.draws)

    def result(self, before: int, rate: float, stream_rate: float) -> Monitored:
        """Return what the stream says."""
        known, size = self._known, len(self._known.names)
        each = np.array([read_numbers(draw.each_p, size) for draw in self.draws]).reshape(-1, size)
        whole = np.array([[draw.p, draw.apart_p] for draw in self.draws]).reshape(-1, 2)
        scarce = [2 + place for place in self._alarms.places]
        found = weigh(np.column_stack([whole, each, 1 - each]), len(known.rows), stream_rate, [[0], [1], scarce])
        since = found.since or 0
        rows = np.array(self._rows[since:]).reshape(-1, size)
        among = None if found.kind is None or found.kind < 2 else (found.kind - 2) % size
        statistic, deviation = most_unusual(known.rows, rows, known.names, among) if len(rows) else (None, None)
        dice = [draw.expected_dice for draw in self.draws[since:] if draw.expected_dice is not None]
        expected = float(np.mean(dice)) if dice else None
        return Monitored(
            draws=[msgspec.structs.replace(draw, name=_title(draw)) for draw in self.draws],
            new=len(self.draws) - before,
            evidence=found.logs,
            drifted_at=None if found.reached is None else _title(self.draws[found.reached]),
            since=None if found.since is None else _title(self.draws[found.since]),
            statistic=statistic,
            deviation=deviation,
            expected_dice=expected,
            reference_dice=self._dice,
            reference_draws=len(known.rows),
            rate=rate,
            stream_rate=stream_rate,
            verdict=self._words(found, statistic, deviation, expected, stream_rate),
            alarms=self._alarms.sentences(found.each, [1, *scarce], self._rows, [_title(draw) for draw in self.draws]),
        )

    def _words(
        self, found: StreamEvidence, statistic: str | None, deviation: float | None, dice: float | None, rate: float
    ) -> str:
        if found.reached is None:
            strength = math.exp(found.logs[-1]) if found.logs else 1.0
            count = len(self.draws)
            return f"no sign of a drift in {count} groups: evidence {strength:.2g}, and {1 / rate:.3g} would be enough"
        way = "higher" if (deviation or 0) > 0 else "lower"
        change = ""
        if dice is not None and self._dice is not None:
            change = (
                f" The expected Dice there is {dice:.2f}, in the reference {self._dice:.2f}; under a drift it is only "
                "as good as the calibration."
            )
        return (
            f"this calibrator no longer applies: since {_title(self.draws[found.since or 0])} the cases differ from "
            f"the reference, most in the {statistic} ({way} by {abs(deviation or 0):.1f} deviations).{change} "
            "Look at these cases, and fit again on labelled ones like them."
        )


def _title(draw: StreamDraw) -> str:
    return draw.name.removeprefix("\0")


def _mean_dice(table: SumTable, first: int) -> float | None:
    found = expected_dice(table)[:, first:][~table.empty[:, first:]]
    return float(found.mean()) if found.size else None


def read_state(path: Path, reference: str) -> list[StreamDraw]:
    """Return the groups of a file that belongs to the reference of this digest."""
    plain = read_json(path)
    if isinstance(plain, dict) and plain.get("format") == "segcal-monitor" and plain.get("version") == 1:
        raise ArtifactError(
            f"{path} has version 1, whose p-values are not right where a structure is missing, but this segcal goes on "
            f"with {VERSION}. Name a new file."
        )
    try:
        state = msgspec.convert(plain, StreamState)
    except ValueError as error:  # also of lone surrogates
        raise ArtifactError(
            f"{path} is not readable as a stream ({error}), but it must be as segcal wrote it. Name another file."
        ) from None
    if state.version > VERSION:
        raise ArtifactError(f"{path} has version {state.version}, but this segcal reads {VERSION}. Update segcal.")
    if state.reference != reference:
        raise InputError(
            f"{path} belongs to another calibrator or its reference, but a stream is compared with one alone. "
            "Name a new file."
        )
    return state.draws


def write_state(path: Path, reference: str, draws: list[StreamDraw]) -> None:
    """Write the file anew, as a whole."""
    write_json(path, msgspec.to_builtins(StreamState(reference=reference, draws=draws)))
