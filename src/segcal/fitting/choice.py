r"""The rule by which a calibrator is chosen without doing harm, from what held-out cases say of each candidate.

1. Temperature scaling is the reference, with the pooling in which its mean NLL over cases is lowest, unless that is
   more than one standard error above the mean without calibration: then doing nothing is. Of fewer than ten groups in
   folds that is a coin, since what is held out is fitted to fewer still; where they disagree about the temperature, the
   one fitted to all of them is their compromise, and is taken. Of so few, doing nothing is also the reference if a
   failed case decides: the mean falls, while the NLL of the median group rises by more than a quarter.
2. Another candidate is *clearly better* if its NLL is lower than the reference's by more than noise allows: the upper
   end of the one-sided 95 % interval of the paired difference (Student's t over groups,
   :func:`segcal.fitting.scores.noise`) is below zero, and neither its ECE nor, where it is known, its BA-ECE is higher
   by more than one standard error. It is so too if all three are lower by more than one standard error: what a
   likelihood with a few failed cases cannot say alone, three numbers can say together. Of fewer than ten groups nothing
   can be said to be clearly better: their spread is not known well enough.
3. The best of these is taken, or the one with the fewest parameters that is within one standard error of it; without
   any, the reference.

So what is taken is never worse than temperature scaling, nor that than nothing, on held-out cases, beyond what noise
allows; and where the cases are too few to know, the answer is the simple one. All calibrators may compete that work
voxel by voxel, keep what must be kept, and fit into memory (:func:`candidates`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from statistics import median
from typing import Literal

import scipy

from segcal.calibrators import CALIBRATORS, fits_in_memory, make_calibrator
from segcal.calibrators.convex import Strengths
from segcal.errors import InputError
from segcal.fitting.scores import Noise, Worth, noise, paired

# One-sided, of the interval that must exclude zero.
LEVEL = 0.95
# Fewer groups than this say nothing of more than a temperature.
ENOUGH_GROUPS = 10
# In 261 divisions of three ensembles whose mean fell (3 to 10 cases, seeds 100 to 129, 200 to 219), temperatures that
# harmed the test cases raised the NLL of the median group by 0.29 to 1.2 in 6 of 8, all others by at most 0.18.
LARGEST_RISE = 0.25
CLEARLY = "clearly better"

Preserve = Literal["order", "argmax", "none"]
# What keeps a promise of at least this kind.
ENOUGH = {"none": (None, "argmax", "order"), "argmax": ("argmax", "order"), "order": ("order",)}
# Methods that lower the NLL of all voxels. Those that decide by a selector or a threshold are for those who name them.
QUICK = ("nothing", "mixture", "isotonic")
METHODS = (*QUICK, "convex", "gradient")


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
    """A candidate with what each held-out case says of it."""

    candidate: Candidate
    worth: Mapping[str, Worth]

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


def candidates(num_classes: int, preserve: Preserve = "argmax", allow_offset_dependent: bool = False) -> list[str]:
    """Return the names of the calibrators that work voxel by voxel and keep at least `preserve`.

    Those that decide by a selector, a threshold or bins, or see neighbours, are for those who name them.

    >>> candidates(3)
    ['identity', 'ts', 'ets', 'cms_ap', 'cms_op', 'conic', 'conic_class', 'pts', 'iop', 'isotonic']
    """
    if preserve not in ENOUGH:
        raise InputError(f"preserve is {preserve!r}, but it must be order, argmax or none. Choose one of the three.")
    names = []
    for name in CALIBRATORS:
        if not fits_in_memory(name, num_classes):
            continue
        calibrator = make_calibrator(name, 2)  # promises do not depend on the number of classes
        fits = calibrator.fitted_by in METHODS and calibrator.pointwise and calibrator.preserves in ENOUGH[preserve]
        names += [name] if fits and (calibrator.translation_invariant or allow_offset_dependent) else []
    return names


def is_quick(name: str) -> bool:
    """Return whether a candidate is fitted in no time, so that it can compete in every pooling."""
    return name == "ts" or make_calibrator(name, 2).fitted_by in QUICK


def decide(tried: Sequence[Tried], groups: Mapping[str, str], folds: int) -> Decision:
    """Choose among candidates, all measured on the same cases, whose groups are given; see the module docstring.

    `folds` is of how many folds they were held out; 1 for validation cases.
    """
    reference = _reference(tried, groups, folds)
    rows = [_judge(row, reference, groups, folds) for row in tried]
    better = [row for row in rows if row.candidate.verdict == CLEARLY]
    plain = next(row for row, given in zip(rows, tried, strict=True) if given is reference)
    chosen = (_simplest(better, groups, folds) if better else plain).candidate
    cases, number = len(reference.worth), len({groups[case_id] for case_id in reference.worth})
    listed = tuple(row.candidate for row in rows)
    return Decision(chosen, listed, cases, number, folds, _reason(chosen, plain.candidate, cases, number))


def undecided(pooling: str | None) -> Decision:
    """Return the decision where no case can be held out: nothing is done."""
    alone = Candidate("identity", pooling, 0, verdict="nothing to compare")
    reason = (
        "The cases are one group, so that none can be held out, and whether anything is better than nothing is not "
        "known: confidences stay as they are. Add cases of other groups, or name a calibrator, such as ts."
    )
    return Decision(alone, (alone,), 0, 1, 0, reason)


def _reference(tried: Sequence[Tried], groups: Mapping[str, str], folds: int) -> Tried:
    """Return temperature scaling where it is best, or no calibration if that is better."""
    scaled, plain = ([row for row in tried if row.candidate.name == name] for name in ("ts", "identity"))
    best, nothing = (min(rows, key=lambda row: row.nll, default=None) for rows in (scaled or tried, plain))
    assert best is not None
    if nothing is None:
        return best
    mean, error = _against(best, nothing, groups, folds)
    few = len({groups[case_id] for case_id in best.worth}) < ENOUGH_GROUPS
    failed = few and mean < 0 and _median_rise(best, nothing, groups) > LARGEST_RISE
    worse = mean > (error or 0.0) and not (few and folds > 1)
    return nothing if failed or worse else best


def _median_rise(row: Tried, other: Tried, groups: Mapping[str, str]) -> float:
    """Return the median over groups of how much higher the NLL is than that of the other, as a share of it."""
    sums: dict[str, list[float]] = {}
    for case_id in row.worth.keys() & other.worth.keys():
        own = sums.setdefault(groups[case_id], [0.0, 0.0])
        own[0] += row.worth[case_id].nll
        own[1] += other.worth[case_id].nll
    return median(after / before - 1 if before else after * inf if after else 0.0 for after, before in sums.values())


def _against(
    row: Tried, other: Tried, groups: Mapping[str, str], folds: int, what: Literal["nll", "ece", "ba_ece"] = "nll"
) -> Noise:
    """Return the mean over cases of what one has more than the other, with its noise."""
    ids, differences = paired(row.worth, other.worth, what)
    return noise(differences, [groups[case_id] for case_id in ids], folds)


def _judge(row: Tried, reference: Tried, groups: Mapping[str, str], folds: int) -> Tried:
    against, ece_against = (_against(row, reference, groups, folds, what) for what in ("nll", "ece"))
    near = [_against(row, reference, groups, folds, "ba_ece")] if _knows_boundaries(row) else []
    number = len({groups[case_id] for case_id in row.worth})
    if row is reference:
        verdict = "reference"
    elif against.mean >= 0:
        verdict = "not better"
    elif number < ENOUGH_GROUPS:
        verdict = "too few groups to know"
    elif near and all(_below_noise(found) for found in (against, ece_against, *near)):
        verdict = CLEARLY
    elif not _below_zero(against, number):
        verdict = "better, but not beyond noise"
    elif _above_noise(ece_against):
        verdict = "better in NLL, worse in ECE"
    elif any(map(_above_noise, near)):
        verdict = "better in NLL, worse in BA-ECE"
    else:
        verdict = CLEARLY
    ece = sum(worth.ece for worth in row.worth.values()) / len(row.worth)
    judged = replace(row.candidate, nll=row.nll, ece=ece, against=against, ece_against=ece_against, verdict=verdict)
    return replace(row, candidate=judged)


def _knows_boundaries(row: Tried) -> bool:
    return any(worth.ba_ece is not None for worth in row.worth.values())


def _below_noise(found: Noise) -> bool:
    return found.error is not None and found.mean < -found.error


def _above_noise(found: Noise) -> bool:
    return found.error is not None and found.mean > found.error


def _below_zero(found: Noise, groups: int) -> bool:
    return found.error is not None and found.mean + float(scipy.stats.t.ppf(LEVEL, groups - 1)) * found.error < 0


def _simplest(rows: Sequence[Tried], groups: Mapping[str, str], folds: int) -> Tried:
    """Return the candidate with the fewest parameters that is within one standard error of the best."""
    best = min(rows, key=lambda row: row.nll)
    close = []
    for row in rows:
        mean, error = _against(row, best, groups, folds)
        close += [row] if row is best or mean <= (error or 0.0) else []
    return min(close, key=lambda row: (row.candidate.parameters, row.nll))


def _reason(chosen: Candidate, reference: Candidate, cases: int, groups: int) -> str:
    where = f"{cases} held-out cases" + (f" of {groups} groups" if groups < cases else "")
    against = chosen.against
    if chosen.verdict == CLEARLY and against is not None:
        than = "no calibration" if reference.name == "identity" else reference.title
        return f"{chosen.title} has an NLL lower than {than} by {-against.mean:.4f} ± {against.error:.4f} on {where}."
    if groups < ENOUGH_GROUPS:
        few = f"{groups} groups are too few to know what more than a temperature is worth: {ENOUGH_GROUPS} are needed."
        return few if chosen.name != "identity" else f"On {where} a temperature was not better than none. {few}"
    if chosen.name == "identity":
        return f"On {where} a temperature was not better than no calibration: confidences stay as they are."
    return f"No calibrator was better than a temperature on {where} beyond their noise."
