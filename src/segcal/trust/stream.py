"""A watch over a stream of new cases, without labels: which are unusual, and whether the calibrator still applies.

Every draw (a case, or the cases of one group) is compared with the reference and all earlier draws of the stream
(:mod:`segcal.trust.atypical`); the p-values are weighed one after the other (:mod:`segcal.trust.drift`). What is kept
of a draw is a row of numbers, in one file that is written anew after each of them: a run that is interrupted goes on
where it was, and cases that are in the file are not counted twice.
"""

import math
import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from segcal.arguments import typed
from segcal.cases import as_cases
from segcal.cases.base import CaseError, Cases
from segcal.cases.parallel import Workers, map_ids
from segcal.errors import InputError
from segcal.evaluation.evaluate import check_match
from segcal.fitting.artifact import to_fitted
from segcal.fitting.certificate import Fitted
from segcal.fitting.division import group_names
from segcal.fitting.fit import check_device
from segcal.fitting.reference import Reference, read_numbers, written_numbers
from segcal.names import class_titles
from segcal.target import claim_beside
from segcal.trust.alarms import STREAM_RATE, Alarms, reference_digest, smoothing
from segcal.trust.atypical import Statistics, atypical_p, column_p, most_unusual, rank_p, statistics_of
from segcal.trust.composition import Compositions
from segcal.trust.drift import StreamEvidence, weigh
from segcal.trust.estimates import expected_dice
from segcal.trust.learn import Summer
from segcal.trust.monitored import Monitored, StreamDraw, read_state, write_state
from segcal.trust.structures import known_reference
from segcal.trust.sums import CaseSums
from segcal.trust.table import Floats, SumTable

RATE = 0.05


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
            group are one draw.
        state: a file that keeps the stream between calls; nothing is kept if it is not given.
        rate: of single draws that are called unusual though they are not.
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
    known = to_fitted(fitted)
    reference = known_reference(known)
    opened = as_cases(cases, **declared)
    check_match(known, opened)
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
        before = len(watch.draws)
        calibrator = known.calibrator.to(check_device(device))
        for name, sums in _draws(opened, watch.seen(), calibrator, workers, failed, progress):
            watch.add(name, sums)
    return watch.result(before, rate, stream_rate)


def _draws(
    cases: Cases, seen: set[str], calibrator: Any, workers: Workers, failed: Any, progress: Any
) -> Iterator[tuple[str, list[CaseSums]]]:
    """Yield the sums of one draw after the other, of which no case was seen before; the first case gives its place."""
    groups = dict(zip(cases.ids, group_names(cases, cases.ids), strict=True))
    members: dict[str, list[str]] = {}
    for case_id, group in groups.items():
        if case_id not in seen and group not in seen:
            members.setdefault(group, []).append(case_id)
    own = cases.with_disagreement()
    ids = [case_id for found in members.values() for case_id in found]
    waiting: list[CaseSums] = []
    current: str | None = None
    for case_id, sums in map_ids(ids, Summer(calibrator, own), workers, failed):
        if waiting and groups[case_id] != current:
            yield str(current), waiting
            waiting = []
        current = groups[case_id]
        waiting.append(sums)
        if progress is not None:
            progress(case_id)
    if waiting:
        yield str(current), waiting


class _Watch:
    """The reference, and a stream that grows."""

    def __init__(self, fitted: Fitted, reference: Reference, path: Path | None, background: bool) -> None:
        self._titles = class_titles(fitted.class_names, len(reference.curves))
        self._first, self._path = 1 if background else 0, path
        table = SumTable.read(reference)
        self._known: Statistics = statistics_of(table, self._titles)
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
        """Weigh a draw and keep it."""
        table = SumTable.of([_grouped(each, name) for each in sums])
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
            draws=self.draws,
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
            return f"no sign of a drift in {count} draws: evidence {strength:.2g}, and {1 / rate:.3g} would be enough"
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


def _grouped(sums: CaseSums, name: str) -> CaseSums:
    sums.group = name
    return sums


def _title(draw: StreamDraw) -> str:
    return draw.name.removeprefix("\0")


def _mean_dice(table: SumTable, first: int) -> float | None:
    found = expected_dice(table)[:, first:][~table.empty[:, first:]]
    return float(found.mean()) if found.size else None
