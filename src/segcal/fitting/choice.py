r"""The rule by which a calibrator is chosen without doing harm, from what held-out cases say of each candidate.

1. Temperature scaling is the reference, with the pooling in which its mean NLL over cases is lowest, unless that is
   more than one standard error above the mean without calibration, also where parts that differ are held out: then
   doing nothing is. Of fewer than ten groups in
   folds that is a coin, since what is held out is fitted to fewer still; where they disagree about the temperature, the
   one fitted to all of them is their compromise, and is taken. Of so few, doing nothing is also the reference if a
   failed case decides: the mean falls, while the NLL of the median group rises by more than a quarter.
2. Another candidate is *clearly better* if its NLL is lower than the reference's by more than noise allows: the upper
   end of the one-sided 95 % interval of the paired difference (Student's t over groups,
   :func:`segcal.fitting.scores.noise`) is below zero, and neither its ECE nor, where it is known, its BA-ECE is higher
   by more than one standard error. It is so too if all three are lower by more than one standard error: what a
   likelihood with a few failed cases cannot say alone, three numbers can say together. Of fewer than ten groups nothing
   can be said to be clearly better: their spread is not known well enough. A gain must also matter: 1 % of the NLL of
   the reference, and 3 % for a candidate that is trained by gradient, whose fit has no certificate.
3. These are compared with each other: one *beats* another if its NLL is lower by more than one standard error and by
   more than a quarter percent of the reference's. Of those that nobody beats, the one with the fewest parameters must
   show that it travels (:mod:`segcal.fitting.travel`): that it does no harm in parts of the cases that differ, when
   they are held out. If it does not, it is out, and the others are compared again; without any, the reference is taken.

Cases of one group cannot hold each other out. Ten or more of them may decide between a temperature and none, as if they
were groups; of fewer nothing is learned: a single image of roads set a temperature that was worse than none elsewhere.

So what is taken is never worse than temperature scaling, nor that than nothing, on held-out cases, beyond what noise
allows; and where the cases are too few to know, the answer is the simple one. All calibrators may compete that work
voxel by voxel, keep what must be kept, and fit into memory (:func:`candidates`).
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from math import inf
from statistics import median
from typing import Literal, TypeAlias

import scipy

from segcal.calibrators import CALIBRATORS, fits_in_memory, make_calibrator
from segcal.errors import InputError
from segcal.fitting.candidate import Candidate, Decision, Tried
from segcal.fitting.scores import Noise, noise, paired
from segcal.fitting.travel import UNSEEN, harm

# One-sided, of the interval that must exclude zero.
LEVEL = 0.95
# Fewer groups than this say nothing of more than a temperature.
ENOUGH_GROUPS = 10
# In 261 divisions of three ensembles whose mean fell (3 to 10 cases, seeds 100 to 129, 200 to 219), temperatures that
# harmed the test cases raised the NLL of the median group by 0.29 to 1.2 in 6 of 8, all others by at most 0.18.
LARGEST_RISE = 0.25
CLEARLY = "clearly better"
ONE_GROUP = "The cases are one group, of which no more than a temperature is learned; others may want another one."
# Shares of the reference's NLL: what a gain must be, what it must be without a certificate, what tells two apart.
MATTERS, NOTICED, TELLS = 0.01, 0.03, UNSEEN

Preserve = Literal["order", "argmax", "none"]
# What keeps a promise of at least this kind.
ENOUGH = {"none": (None, "argmax", "order"), "argmax": ("argmax", "order"), "order": ("order",)}
# Methods that lower the NLL of all voxels. Those that decide by a selector or a threshold are for those who name them.
QUICK = ("nothing", "mixture", "isotonic")
METHODS = (*QUICK, "convex", "gradient")


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


# Gives a candidate measured away too: as it is, or with stronger penalties, weakest first.
Travel: TypeAlias = Callable[[Tried], Iterable[Tried]]


def decide(
    tried: Sequence[Tried],
    groups: Mapping[str, str],
    folds: int,
    travel: Travel | None = None,
    parts: Mapping[str, Collection[str]] | None = None,
    errors: float = 1.0,
) -> Decision:
    """Choose among candidates, all measured on the same cases, whose groups are given; see the module docstring.

    `folds` is of how many folds they were held out; 1 for validation cases. `travel` measures a candidate in `parts`
    that differ, with so many standard `errors` for noise; without it none has to.
    """
    reference = _reference(tried, groups, folds, travel, errors)
    rows = [_judge(row, reference, groups, folds) for row in tried]
    plain = next(row for row, given in zip(rows, tried, strict=True) if given.candidate is reference.candidate)
    better = [number for number, row in enumerate(rows) if row.candidate.verdict == CLEARLY]
    winner: Tried | None = None
    settled: list[int] = []
    while better:
        winner = _unbeaten([rows[number] for number in better], reference.nll, groups, folds)
        number = next(each for each in better if rows[each] is winner)
        if travel is None or number in settled:
            break
        settled.append(number)
        reference = _travelled(reference, travel)
        rows[number], winner = _settle(winner, travel(winner), reference, groups, folds, parts or {}, errors), None
        better = [each for each in better if rows[each].candidate.verdict == CLEARLY]
    rows = [
        row if winner is None or row is winner else _beaten(row, winner, reference.nll, groups, folds) for row in rows
    ]
    chosen = (plain if winner is None else winner).candidate
    cases, number = len(reference.worth), len({groups[case_id] for case_id in reference.worth})
    listed = tuple(row.candidate for row in rows)
    reason = _reason(chosen, plain.candidate, cases, number)
    if harmful := [rows[each].candidate.title for each in settled if rows[each].candidate.verdict != CLEARLY]:
        reason += f" Where cases that differ are held out, harm was done by {', '.join(harmful)}."
    return Decision(chosen, listed, cases, number, folds, reason)


def _travelled(row: Tried, travel: Travel) -> Tried:
    """Return a candidate without a penalty measured away too, once."""
    return row if row.away is not None else replace(row, away=next(iter(travel(row))).away)


def _settle(
    row: Tried,
    versions: Iterable[Tried],
    reference: Tried,
    groups: Mapping[str, str],
    folds: int,
    parts: Mapping[str, Collection[str]],
    errors: float,
) -> Tried:
    """Return the first version that travels, if it is still clearly better; or the candidate with why not."""
    why = ""
    for version in versions:
        assert version.away is not None
        assert reference.away is not None
        against = harm(version.away, reference.away, groups, parts, errors)
        if not against:
            return _judge(version, reference, groups, folds)
        why = why or against
    return replace(row, candidate=replace(row.candidate, verdict=why))


def undecided(pooling: str | None) -> Decision:
    """Return the decision where no case can be held out: nothing is done."""
    alone = Candidate("identity", pooling, 0, verdict="nothing to compare")
    reason = (
        "The cases are one group, so that none can be held out, and whether anything is better than nothing is not "
        "known: confidences stay as they are. Add cases of other groups, or name a calibrator, such as ts."
    )
    return Decision(alone, (alone,), 0, 1, 0, reason)


def _reference(
    tried: Sequence[Tried], groups: Mapping[str, str], folds: int, travel: Travel | None, errors: float
) -> Tried:
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
    if failed or worse or few or travel is None:
        return nothing if failed or worse else best
    best, nothing = _travelled(best, travel), _travelled(nothing, travel)
    assert best.away is not None
    assert nothing.away is not None
    ids, differences = paired(best.away, nothing.away)
    return nothing if _above_noise(noise(differences, [groups[i] for i in ids], folds=1), errors) else best


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
    found = {what: _against(row, reference, groups, folds, what) for what in ("nll", "ece")}
    if any(worth.ba_ece is not None for worth in row.worth.values()):
        found["ba_ece"] = _against(row, reference, groups, folds, "ba_ece")
    trained = make_calibrator(row.candidate.name, 2).fitted_by == "gradient"
    number = len({groups[case_id] for case_id in row.worth})
    verdict = _verdict(found, number, reference.nll, NOTICED if trained else MATTERS)
    verdict = "reference" if row.candidate is reference.candidate else verdict
    ece = sum(worth.ece for worth in row.worth.values()) / len(row.worth)
    judged = replace(row.candidate, nll=row.nll, ece=ece, against=found["nll"], ece_against=found["ece"])
    return replace(row, candidate=replace(judged, verdict=verdict))


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
    return found.error is not None and found.mean + float(scipy.stats.t.ppf(LEVEL, groups - 1)) * found.error < 0


def _beats(one: Tried, other: Tried, scale: float, groups: Mapping[str, str], folds: int) -> bool:
    mean, error = _against(one, other, groups, folds)
    return mean < -max(error or 0.0, TELLS * scale)


def _unbeaten(rows: Sequence[Tried], scale: float, groups: Mapping[str, str], folds: int) -> Tried:
    """Return the candidate with the fewest parameters that no other beats."""
    free = [row for row in rows if not any(_beats(other, row, scale, groups, folds) for other in rows)]
    return min(free, key=lambda row: (row.candidate.parameters, row.nll))


def _beaten(row: Tried, winner: Tried, scale: float, groups: Mapping[str, str], folds: int) -> Tried:
    """Return a candidate that was clearly better than the reference, with why another was taken."""
    if row.candidate.verdict != CLEARLY:
        return row
    title = winner.candidate.title
    lost = _beats(winner, row, scale, groups, folds)
    return replace(
        row, candidate=replace(row.candidate, verdict=f"{'beaten by' if lost else 'no better than'} {title}")
    )


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
