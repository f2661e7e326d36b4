r"""The rule by which a calibrator is chosen without doing harm, from what held-out cases say of each candidate.

1. Temperature scaling is the reference, with the pooling in which its mean NLL over cases is lowest. If that is more
than one standard error above the mean without calibration, also on held-out sites that differ, doing nothing is the
reference. Of fewer than ten groups in folds that is a coin, since what is held out is fitted to fewer still.
   Where they disagree about the temperature, the one fitted to all of them is their compromise, and is taken.
   Doing nothing is also the reference if a failed case decides. Where groups count less
   (:mod:`segcal.fitting.outliers`), the mean NLL of the others must fall too. Of few groups none may be found to fail.
   There a case decides if the mean falls, while the NLL of the median group rises by more than a quarter.
2. Another candidate is *clearly better* if its NLL is lower than the reference's by more than noise. This means that
the upper end of the one-sided 95 % interval of the paired difference is below zero (Student's t over groups,
:func:`segcal.fitting.scores.noise`). Neither its ECE nor, where it is known, its BA-ECE may be higher by more than one
standard error. So it is if all three are lower by more than one standard error. With a few failed cases the likelihood
alone cannot show it, but three numbers together can. Of fewer than ten groups nothing
   can be said to be clearly better: their spread is not known well enough. A gain must also matter. It is at least 1 %
   of the NLL of the reference, and 3 % for training by gradient, whose fit has no certificate.
3. These are compared with each other. One *beats* another if its NLL is lower by more than one standard error and by
   more than a quarter percent of the reference's. Of those that nobody beats, the one with the fewest parameters must
   show that it *generalises*. It must do no harm in parts of the cases that differ
   (:class:`segcal.fitting.division.Sites`). If it does not, it is out, and the others are compared again; without any,
   the reference is taken.

Fitted without one site, in turn, a candidate is measured on it beside the reference, fitted without it too. Three
conditions decide. At no site its NLL exceeds the reference's both by more than noise over its groups and by a quarter
percent. The worst 5 % of the cases lose at most :data:`WORST_RISE` nats on average, or a tenth of the reference's NLL
where that is more. Over all sites neither its ECE nor its BA-ECE is higher by more than noise. Noise is one standard
error where sites are declared. Clusters are made of all cases there are, and a calibrator is rarely used where one kind
is absent. There the limit is two standard errors: harm, not only less gain. Of a candidate with a penalty, strengths
are tried from the one that random folds chose upwards: the first at which it generalises is taken.

Cases of one group cannot hold each other out. Ten or more of them may decide between a temperature and none, as if they
were groups. Of fewer nothing is learned: a single image of roads set a temperature that was worse than none elsewhere.

So on held-out cases the choice is not worse than temperature scaling beyond noise, nor that worse than nothing. Where
cases are too few to know, the simple answer is taken. All calibrators may compete that work voxel by voxel, keep what
must be kept, and fit into memory (:func:`candidates`).
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from statistics import fmean, median
from typing import Any, Literal, TypeAlias

from scipy.special import stdtrit  # of Student's t: scipy.stats takes long to import

from segcal.calibrators import CALIBRATORS, fits_in_memory, make_calibrator
from segcal.calibrators.convex import Strengths
from segcal.errors import InputError
from segcal.fitting.scores import Noise, Worth, difference, mean_over_cases, paired

# One-sided, of the interval that must exclude zero.
LEVEL = 0.95
# Fewer groups than this say nothing of more than a temperature.
ENOUGH_GROUPS = 10
# In 261 splits of three ensembles whose mean fell (3 to 10 cases, seeds 100 to 129, 200 to 219), temperatures that
# harmed the test cases raised the NLL of the median group by 0.29 to 1.2 in 6 of 8, all others by at most 0.18.
LARGEST_RISE = 0.25
CLEARLY = "clearly better"
ONE_GROUP = "The cases are one group, of which no more than a temperature is learned; others may want another one."
# Shares of the reference's NLL: what a gain must be, what it must be without a certificate, what tells two apart.
MATTERS, NOTICED, TELLS = 0.01, 0.03, 0.0025

Preserve = Literal["order", "argmax", "none"]
# What keeps a promise of at least this kind.
ENOUGH = {"none": (None, "argmax", "order"), "argmax": ("argmax", "order"), "order": ("order",)}
# Methods that fit in no time.
QUICK = ("nothing", "mixture", "isotonic")
# What the mean of the worst share of the cases may rise by where a candidate has not been: nats, or a share of the NLL.
WORST_RISE, WORST_RISE_SHARE, WORST_SHARE = 0.02, 0.1, 0.05
# A share of the reference's NLL that is too small to matter.
UNSEEN = 0.0025


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


def candidates_of(details: Mapping[str, Any]) -> list[Candidate]:
    """Return the candidates of a comparison, from the details of a certificate; none where there was no comparison."""
    return [Candidate(**one) for one in details.get("candidates", ())]


@dataclass(frozen=True)
class Tried:
    """A candidate with what each held-out case says of it; `away`, where a site was held out with it."""

    candidate: Candidate
    worth: Mapping[str, Worth]
    away: Mapping[str, Worth] | None = None

    @property
    def nll(self) -> float:
        """Mean NLL over cases."""
        return mean_over_cases(self.worth)

    @property
    def measured_away(self) -> Mapping[str, Worth]:
        """`away`, which has been measured."""
        assert self.away is not None
        return self.away


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
    """Return the names of the calibrators that compete and keep at least `preserve`.

    Those that decide by a selector, a threshold or bins, or see neighbours, are for those who name them.

    >>> candidates(3)
    ['identity', 'ts', 'ets', 'cms_ap', 'cms_op', 'conic', 'conic_class', 'pts', 'isotonic']
    """
    if preserve not in ENOUGH:
        raise InputError(f"preserve is {preserve!r}, but it must be order, argmax or none. Choose one of the three.")
    names = []
    for name in CALIBRATORS:
        if not fits_in_memory(name, num_classes):
            continue
        calibrator = make_calibrator(name, 2)  # promises do not depend on the number of classes
        fits = calibrator.competes and calibrator.preserves in ENOUGH[preserve]
        names += [name] if fits and (calibrator.translation_invariant or allow_offset_dependent) else []
    return names


def is_quick(name: str) -> bool:
    """Return whether a candidate is fitted in no time, so that it can compete in every pooling."""
    return name == "ts" or make_calibrator(name, 2).fitted_by in QUICK


# Gives a candidate measured away too: as it is, or with stronger penalties, weakest first.
Transfer: TypeAlias = Callable[[Tried], Iterable[Tried]]


@dataclass(frozen=True)
class ChoiceRule:
    """The rule for candidates that were all measured on the same cases; see the module docstring.

    Attributes:
        groups: of every case.
        folds: of how many folds they were held out; 1 for validation cases.
        transfer: measures a candidate in `parts` that differ; without it none has to.
        parts: the cases of each site.
        errors: how many standard errors are noise there.
        less: the cases of groups that count less.
    """

    groups: Mapping[str, str]
    folds: int
    transfer: Transfer | None = None
    parts: Mapping[str, Collection[str]] = field(default_factory=dict)
    errors: float = 1.0
    less: Collection[str] = ()

    def decide(self, tried: Sequence[Tried]) -> Decision:
        """Choose among candidates."""
        reference = self._reference(tried)
        rows = [self._judge(row, reference) for row in tried]
        plain = next(row for row, given in zip(rows, tried, strict=True) if given.candidate is reference.candidate)
        better = [number for number, row in enumerate(rows) if row.candidate.verdict == CLEARLY]
        winner: Tried | None = None
        settled: list[int] = []
        while better:
            winner = self._unbeaten([rows[number] for number in better], reference.nll)
            number = next(each for each in better if rows[each] is winner)
            if self.transfer is None or number in settled:
                break
            settled.append(number)
            reference = self._measured_away(reference)
            rows[number], winner = self._settle(winner, self.transfer(winner), reference), None
            better = [each for each in better if rows[each].candidate.verdict == CLEARLY]
        if winner is not None:
            rows = [row if row is winner else self._beaten(row, winner, reference.nll) for row in rows]
        chosen = (plain if winner is None else winner).candidate
        cases, number = len(reference.worth), self._count(reference)
        reason = _reason(chosen, plain.candidate, cases, number, bool(self.less))
        if harmful := [rows[each].candidate.title for each in settled if rows[each].candidate.verdict != CLEARLY]:
            reason += f" Where cases that differ are held out, harm was done by {', '.join(harmful)}."
        return Decision(chosen, tuple(row.candidate for row in rows), cases, number, self.folds, reason)

    def _count(self, row: Tried) -> int:
        return len({self.groups[case_id] for case_id in row.worth})

    def _reference(self, tried: Sequence[Tried]) -> Tried:
        """Return temperature scaling where it is best, or no calibration if that is better."""
        scaled, plain = ([row for row in tried if row.candidate.name == name] for name in ("ts", "identity"))
        best, nothing = (min(rows, key=lambda row: row.nll, default=None) for rows in (scaled or tried, plain))
        assert best is not None
        if nothing is None:
            return best
        mean, error = self._against(best, nothing)
        few = self._count(best) < ENOUGH_GROUPS
        others = {case_id: worth for case_id, worth in best.worth.items() if case_id not in self.less}
        failed = few and mean < 0 and self._median_rise(best, nothing) > LARGEST_RISE
        failed = failed or (bool(self.less) and difference(others, nothing.worth, self.groups).mean > 0)
        worse = mean > (error or 0.0) and not (few and self.folds > 1)
        if failed or worse or few or self.transfer is None:
            return nothing if failed or worse else best
        best, nothing = self._measured_away(best), self._measured_away(nothing)
        found = difference(best.measured_away, nothing.measured_away, self.groups)
        return nothing if _above_noise(found, self.errors) else best

    def _measured_away(self, row: Tried) -> Tried:
        """Return a candidate without a penalty measured away too, once."""
        assert self.transfer is not None
        return row if row.away is not None else replace(row, away=next(iter(self.transfer(row))).away)

    def _settle(self, row: Tried, versions: Iterable[Tried], reference: Tried) -> Tried:
        """Return the first version that generalises, if it is still clearly better; or the candidate with why not."""
        why = ""
        for version in versions:
            against = harm(version.measured_away, reference.measured_away, self.groups, self.parts, self.errors)
            if not against:
                return self._judge(version, reference)
            why = why or against
        return replace(row, candidate=replace(row.candidate, verdict=why))

    def _median_rise(self, row: Tried, other: Tried) -> float:
        """Return the median over groups of how much higher the NLL is than that of the other, as a share of it."""
        sums: dict[str, list[float]] = {}
        for case_id in row.worth.keys() & other.worth.keys():
            own = sums.setdefault(self.groups[case_id], [0.0, 0.0])
            own[0] += row.worth[case_id].nll
            own[1] += other.worth[case_id].nll
        return median(
            after / before - 1 if before else after * inf if after else 0.0 for after, before in sums.values()
        )

    def _against(self, row: Tried, other: Tried, what: str = "nll") -> Noise:
        return difference(row.worth, other.worth, self.groups, self.folds, what)

    def _judge(self, row: Tried, reference: Tried) -> Tried:
        near = any(worth.ba_ece is not None for worth in row.worth.values())
        found = {what: self._against(row, reference, what) for what in ("nll", "ece", *(("ba_ece",) if near else ()))}
        trained = make_calibrator(row.candidate.name, 2).fitted_by == "gradient"
        verdict = _verdict(found, self._count(row), reference.nll, NOTICED if trained else MATTERS)
        verdict = "reference" if row.candidate is reference.candidate else verdict
        ece = sum(worth.ece for worth in row.worth.values()) / len(row.worth)
        judged = replace(row.candidate, nll=row.nll, ece=ece, against=found["nll"], ece_against=found["ece"])
        return replace(row, candidate=replace(judged, verdict=verdict))

    def _beats(self, one: Tried, other: Tried, scale: float) -> bool:
        mean, error = self._against(one, other)
        return mean < -max(error or 0.0, TELLS * scale)

    def _unbeaten(self, rows: Sequence[Tried], scale: float) -> Tried:
        """Return the candidate with the fewest parameters that no other beats."""
        free = [row for row in rows if not any(self._beats(other, row, scale) for other in rows)]
        return min(free, key=lambda row: (row.candidate.parameters, row.nll))

    def _beaten(self, row: Tried, winner: Tried, scale: float) -> Tried:
        """Return a candidate that was clearly better than the reference, with why another was taken."""
        if row.candidate.verdict != CLEARLY:
            return row
        how = "beaten by" if self._beats(winner, row, scale) else "no better than"
        return replace(row, candidate=replace(row.candidate, verdict=f"{how} {winner.candidate.title}"))


def undecided(pooling: str | None) -> Decision:
    """Return the decision where no case can be held out: nothing is done."""
    alone = Candidate("identity", pooling, 0, verdict="nothing to compare")
    reason = (
        "The cases are one group, so that none can be held out, and whether anything is better than nothing is not "
        "known: confidences stay as they are. Add cases of other groups, or name a calibrator, such as ts."
    )
    return Decision(alone, (alone,), 0, 1, 0, reason)


def _verdict(found: Mapping[str, Noise], groups: int, scale: float, share: float) -> str:
    """Return what came of a candidate, from its differences to the reference, whose NLL is `scale`."""
    against = found["nll"]
    if against.mean >= 0:
        return "not better"
    if groups < ENOUGH_GROUPS:
        return "too few groups to know"
    together = "ba_ece" in found and all(map(_below_noise, found.values()))
    if not (together or _below_zero(against, groups)):
        return "better, but not beyond noise"
    for what, title in (("ece", "ECE"), ("ba_ece", "BA-ECE")):
        if what in found and _above_noise(found[what]):
            return f"better in NLL, worse in {title}"
    return CLEARLY if -against.mean >= share * scale else f"better by less than {share:.0%}"


def _below_noise(found: Noise) -> bool:
    return found.error is not None and found.mean < -found.error


def _above_noise(found: Noise, errors: float = 1.0) -> bool:
    return found.error is not None and found.mean > errors * found.error


def _below_zero(found: Noise, groups: int) -> bool:
    return found.error is not None and found.mean + float(stdtrit(groups - 1, LEVEL)) * found.error < 0


def harm(
    own: Mapping[str, Worth],
    reference: Mapping[str, Worth],
    groups: Mapping[str, str],
    parts: Mapping[str, Collection[str]],
    errors: float = 1.0,
) -> str:
    """Return what speaks against a candidate that was measured away, in a few words; nothing if it generalises."""
    losses = {}
    for name, part in parts.items():
        inside = {case_id: own[case_id] for case_id in part if case_id in own and case_id in reference}
        mean, error = difference(inside, reference, groups)
        scale = fmean(reference[case_id].nll for case_id in inside) if inside else 0.0
        if mean > max(errors * (error or 0.0), UNSEEN * scale):
            losses[name] = mean
    if losses:
        worst = max(losses, key=lambda name: losses[name])
        return f"worse in {worst}, when held out: {losses[worst]:+.4f}"
    ids, differences = paired(own, reference)
    tail = worst_mean(differences)
    if tail > max(WORST_RISE, WORST_RISE_SHARE * fmean(reference[case_id].nll for case_id in ids)):
        return f"worst cases elsewhere: {tail:+.3f} nats"
    for what, title in (("ece", "ECE"), ("ba_ece", "BA-ECE")):
        if _above_noise(difference(own, reference, groups, what=what), errors):
            return f"worse in {title} elsewhere"
    return ""


def worst_mean(differences: Collection[float]) -> float:
    """Return the mean of the worst 5 % of differences, of one at least.

    >>> worst_mean([0.0, 0.5, -1.0])
    0.5
    """
    ranked = sorted(differences, reverse=True)
    return fmean(ranked[: max(1, round(WORST_SHARE * len(ranked)))])


def _reason(chosen: Candidate, reference: Candidate, cases: int, groups: int, failed: bool) -> str:
    where = f"{cases} held-out cases" + (f" of {groups} groups" if groups < cases else "")
    without = ", but for groups that failed," if failed else ""
    against = chosen.against
    if chosen.verdict == CLEARLY and against is not None:
        than = "no calibration" if reference.name == "identity" else reference.title
        return f"{chosen.title} has an NLL lower than {than} by {-against.mean:.4f} ± {against.error:.4f} on {where}."
    if groups < ENOUGH_GROUPS:
        few = f"{groups} groups are too few to know what more than a temperature is worth: {ENOUGH_GROUPS} are needed."
        return (
            few if chosen.name != "identity" else f"On {where}{without} a temperature was not better than none. {few}"
        )
    if chosen.name == "identity":
        return f"On {where}{without} a temperature was not better than no calibration: confidences stay as they are."
    return f"No calibrator was better than a temperature on {where} beyond their noise."
