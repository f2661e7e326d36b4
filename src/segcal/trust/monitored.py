"""A stream of draws: what is kept of each, the file that keeps them, and what they amount to."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec

from segcal.documents import read_json, write_json
from segcal.errors import ArtifactError, InputError

# 1 had numbers with other digits than the reference, which made clean draws look odd.
VERSION = 2


class StreamDraw(msgspec.Struct):
    """One draw of the stream.

    Attributes:
        name: of its group, or of its case.
        cases: its cases.
        numbers: its statistics.
        p: its p-value among the reference and the draws before it, ties broken by a digest of its name.
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


class StreamState(msgspec.Struct, kw_only=True):
    """The file: which reference it belongs to, and all draws so far."""

    format: Literal["segcal-monitor"] = "segcal-monitor"
    version: int = VERSION
    reference: str
    draws: list[StreamDraw]


@dataclass(frozen=True)
class Monitored:
    """What a stream says.

    Attributes:
        draws: all draws so far, in their order.
        new: how many of them this call added.
        evidence: of a drift, after each draw, as a logarithm.
        drifted_at: the draw at which the evidence was enough; None if it is not.
        since: the draw with which the drift began.
        statistic: in which the stream differs most since then.
        deviation: by how many deviations of the reference.
        expected_dice: the mean over the stream since then, or over all of it without a drift.
        reference_dice: the same of the reference.
        reference_draws: how many draws the reference has.
        rate: of unusual cases that is stated for single draws.
        stream_rate: the chance of a false alarm, ever.
        verdict: all this in words.
        alarms: in words, classes with little evidence that became frequent, and cases that left what was seen.
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

    @property
    def unusual(self) -> list[StreamDraw]:
        """The draws that are rarer than the rate."""
        return [draw for draw in self.draws if draw.rarity <= self.rate]

    @property
    def applies(self) -> bool:
        """Whether the calibrator still applies, as far as the stream says."""
        return self.drifted_at is None

    def __str__(self) -> str:
        return self.verdict


def read_state(path: Path, reference: str) -> list[StreamDraw]:
    """Return the draws of a file that belongs to the reference of this digest."""
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
