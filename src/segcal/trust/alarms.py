r"""Alarms: a class with little evidence becomes frequent, or cases leave the clusters that calibration has seen.

A class has *little evidence* if fewer groups of the fit have it than `FitConfig.evidence` asks for
(:mod:`segcal.fitting.evidence`). That it becomes more frequent is known by the p-values of its expected size. It also
has to matter. Since then it takes at least :data:`FREQUENT` of the voxels, and :data:`TIMES` its share in the
reference. Both are means over groups (within a group, geometric ones). That cases leave is known by the p-values of
their composition (:class:`segcal.trust.atypical.Compositions`).

Both are kinds of p-values beside the others of a stream (:mod:`segcal.trust.drift`) with a share of its capital. So the
chance of any alarm ever without a change is at most the rate. The cases of :func:`segcal.trust` are such a stream too,
in their order.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from segcal.fitting.certificate import Fitted
from segcal.fitting.config import FitConfig
from segcal.fitting.reference import Reference
from segcal.names import class_titles
from segcal.trust.atypical import Compositions, Statistics, column_p, rank_p, size_columns, statistics_of
from segcal.trust.drift import weigh
from segcal.trust.estimates import Floats, SumTable

# The chance that a stream is ever called another one though it is not.
STREAM_RATE = 0.01
# A share of the voxels below which the probabilities of a class change no number of a case by much.
FREQUENT, TIMES = 0.001, 2
ACT = "Label some of these cases and fit again."


@dataclass(frozen=True)
class Alarms:
    """The input of alarms: names of classes, the reference, groups of the fit, and those of scarce classes."""

    titles: tuple[str, ...]
    known: Statistics
    groups: int
    scarce: dict[int, int]

    @classmethod
    def of(cls, fitted: Fitted, known: Statistics, titles: tuple[str, ...]) -> "Alarms":
        """Return the alarms of a calibrator; one of an older segcal has no evidence, and no class is scarce in it."""
        found = fitted.certificate.evidence
        if found is None:
            return cls(titles, known, 0, {})
        least = min(fitted.config.evidence or FitConfig().evidence, found.groups)
        return cls(titles, known, found.groups, {c: n for c, n in enumerate(found.class_groups) if n < least})

    def frequencies(self, rows: Floats) -> Floats:
        """Return the expected share of the voxels of each class, of rows of statistics."""
        shares: Floats = np.exp(rows[..., size_columns(len(self.titles))])
        return shares

    @property
    def places(self) -> list[int]:
        """Where the expected sizes of scarce classes stand in a row of statistics."""
        return [size_columns(len(self.titles)).start + number for number in self.scarce]

    def sentences(
        self, since: Mapping[int, int], kinds: Sequence[int], rows: Sequence[Floats], names: Sequence[str]
    ) -> list[str]:
        """Return the alarms of those `kinds` (the composition, and each scarce class) that changed `since` a group."""
        found, was = [], self.frequencies(self.known.rows).mean(0)
        for kind, number in zip(kinds, (None, *self.scarce), strict=True):
            if (first := since.get(kind)) is None:
                continue
            now = self.frequencies(np.array(rows[first:])).mean(0)
            if number is None:
                most = int(np.abs(np.sqrt(now) - np.sqrt(was)).argmax())
                what = f"class frequencies since {names[first]} are unlike those of any part of the reference cases"
                change = f"most that of {self.titles[most]}: {_percent(now[most])} of the voxels, {_percent(was[most])}"
                found.append(f"{what}, {change} there. {ACT}")
            elif now[number] >= max(FREQUENT, TIMES * was[number]):
                what = f"{self.titles[number]} was in {self.scarce[number]} of {self.groups} groups of the fit and has"
                change = f"{_percent(now[number])} of the voxels since {names[first]}, {_percent(was[number])} in the"
                found.append(f"{what} become frequent: {change} reference cases. {ACT}")
        return found

    def raised(self, new: Statistics, digest: str, rate: float) -> list[str]:
        """Return the alarms that a stream of groups raises; `digest` breaks ties."""
        seen, kept, p_values = Compositions(self.frequencies(self.known.rows)), self.known.rows, []
        for name, row in zip(new.draws, new.rows, strict=True):
            smooth = smoothing(digest, name)
            apart = rank_p(seen.scores(self.frequencies(row), keep=True), smooth)
            p_values.append([apart, *column_p(kept[:, self.places], row[self.places], smooth)])
            kept = np.vstack([kept, row])
        kinds = range(1 + len(self.scarce))
        since = weigh(p_values, len(self.known.rows), rate, [[0], kinds[1:]]).each
        return self.sentences(since, kinds, list(new.rows), [name.removeprefix("\0") for name in new.draws])


def reference_digest(reference: Reference) -> str:
    """Return the digest of what a stream is compared with."""
    return hashlib.sha256(msgspec.json.encode(reference)).hexdigest()[:32]


def smoothing(digest: str, name: str) -> float:
    """Return the uniform number that breaks the ties of a group, the same at every call."""
    found = hashlib.sha256(f"{digest} {name}".encode("utf-8", "surrogatepass")).digest()
    return (int.from_bytes(found[:8], "big") + 0.5) / 2**64


def alarms_of(fitted: Fitted, reference: Reference, table: SumTable, rate: float = STREAM_RATE) -> list[str]:
    """Return the alarms that new cases raise; none where the reference has groups, and they do not."""
    earlier, titles = SumTable.read(reference), class_titles(fitted.class_names, len(reference.curves))
    if len(set(earlier.groups)) < len(earlier.ids) and all(group.startswith("\0") for group in table.groups):
        return []
    alarms = Alarms.of(fitted, statistics_of(earlier, titles), titles)
    return alarms.raised(statistics_of(table, titles), reference_digest(reference), rate)


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"
