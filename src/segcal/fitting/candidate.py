"""The candidates of a comparison, what held-out cases say of each, and the decision."""

from collections.abc import Mapping
from dataclasses import dataclass

from segcal.calibrators.convex import Strengths
from segcal.fitting.scores import Noise, Worth


@dataclass(frozen=True)
class Candidate:
    """One calibrator with one pooling, in a comparison.

    Attributes:
        pooling: how members were pooled, or None if that is not known.
        parameters: how many it has that can be told apart.
        nll: mean over held-out cases of the mean NLL of a case; None if it was not tried.
        ece: the same of their ECE.
        against: NLL minus that of the reference.
        ece_against: ECE minus that of the reference.
        verdict: what came of it, in words.
    """

    name: str
    pooling: str | None
    parameters: int
    nll: float | None = None
    ece: float | None = None
    against: Noise | None = None
    ece_against: Noise | None = None
    strengths: Strengths | None = None
    verdict: str = ""

    @property
    def title(self) -> str:
        """Return the name with the pooling."""
        return self.name if self.pooling in (None, "single") else f"{self.name} ({self.pooling})"


@dataclass(frozen=True)
class Tried:
    """A candidate with what each held-out case says of it; `away`, where a part that differs was held out with it."""

    candidate: Candidate
    worth: Mapping[str, Worth]
    away: Mapping[str, Worth] | None = None

    @property
    def nll(self) -> float:
        """Mean NLL over cases."""
        return sum(worth.nll for worth in self.worth.values()) / len(self.worth)


@dataclass(frozen=True)
class Decision:
    """The outcome of a comparison.

    Attributes:
        cases: how many cases were held out, of how many `groups`, in how many `folds`; 0 if none could be.
        reason: why this one, in one or two sentences.
    """

    chosen: Candidate
    candidates: tuple[Candidate, ...]
    cases: int
    groups: int
    folds: int
    reason: str
