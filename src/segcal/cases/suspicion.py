r"""Suspicions: data that are possible but rarely intended, one message each; and the margins of all rules.

"Clearly better" is a margin of agreement beyond chance (:mod:`segcal.cases.profile`), and the better fit must be a fit
at all (:data:`FIT`). The rules:

- *near chance*: over all cases together the agreement is below :data:`NEAR_CHANCE`, on enough voxels to say so, and
  nothing else explains it.
- *unlike the others*: a member whose agreement with the others is lower by :data:`GAIN` than theirs among each other.
  Members of real ensembles differ by less than a tenth of that.
- *turned*: one turn fits better by :data:`GAIN` in the mean and better at all in most cases. Without one turn for all,
  it is found in single cases that fit better by :data:`LARGE_GAIN` and well (:data:`LARGE_FIT`).
- *shifted*: one shift fits better in most cases, and in three at least, by :data:`GAIN_OF_SHIFT` in their mean. In
  nearly all cases less is enough (street scenes moved by 1 % of their width: 0.024). A shift of one voxel needs
  :data:`GAIN`, since carefully drawn labels may be biased by that much.
- *paired otherwise*: scores fit the labels of another case of their shape better by :data:`GAIN` than their own. They
  also fit them better by as much than that case's own scores do. A network that fails on one case does not look like
  this: the labels that it resembles have better scores of their own. There must be two such cases, since files change
  places.
- *renumbered*: the classes of a cycle overlap by :data:`GAIN_OF_CLASS` more, in the mean, with the class that
  follows, and most of them do. A class that is merely mistaken for another improves alone.
- *the same*: equal digests of the scores.

Where labels could be turned, shifted, paired otherwise or renumbered, the only explanation given is that with the best
fit. Mirrored labels may also resemble those of another case.
"""

import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from torch import Tensor

from segcal.cases.base import SINGLE_FOLDS, Cases
from segcal.cases.kinds import LIKE_PROBS, share_of_ones
from segcal.cases.profile import Profile, Shift, Turn, agreement, better_numbers, pair_agreement, table_agreement
from segcal.errors import InputError, SuspicionWarning

NEAR_CHANCE = 0.1
ENOUGH_VOXELS = 1000
FIT = 0.3
GAIN = 0.1
LARGE_FIT = 0.4
LARGE_GAIN = 0.2
MOST = 0.75
GAIN_OF_CLASS = 0.2
GAIN_OF_SHIFT = 0.05
NEARLY_ALL_SHIFTED, THEIR_GAIN = 0.9, 0.015
FEW_SHIFTED = 3
NEARLY_ALL = 0.99
LISTED = 5
MOST_PAIRED = 256  # scores that look for other labels; of more cases, some, spread evenly


@dataclass(frozen=True)
class Suspicion:
    """One sentence, and the cases it is about; none where it is about all of them."""

    text: str
    ids: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{listed(self.ids)}: {self.text}" if self.ids else self.text


def warn(suspicions: Iterable[Suspicion]) -> None:
    """Say suspicions as warnings, each one sentence, at the user's line: the first that is not of this package."""
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] == "segcal":
        frame, level = frame.f_back, level + 1
    for suspicion in suspicions:
        warnings.warn(str(suspicion), SuspicionWarning, stacklevel=level)


def listed(names: Sequence[str]) -> str:
    """Return a few names, and how many more there are.

    >>> listed(["a", "b", "c", "d", "e", "f", "g"])
    'a, b, c, d, e and 2 more'
    """
    shown = ", ".join(names[:LISTED])
    return shown if len(names) <= LISTED else f"{shown} and {len(names) - LISTED} more"


def like_probabilities(ids: Sequence[str]) -> list[Suspicion]:
    """Return the suspicion that scores declared as logits are probabilities, if there are such cases."""
    return wrong_kinds(dict.fromkeys(ids, LIKE_PROBS))


def wrong_kinds(kind_warnings: Mapping[str, str]) -> list[Suspicion]:
    """Return what speaks against the declared kind, from the warning about each case, empty for none."""
    found = dict.fromkeys(text for text in kind_warnings.values() if text)
    return [Suspicion(text, tuple(case_id for case_id, own in kind_warnings.items() if own == text)) for text in found]


def suspect_kind(cases: Cases) -> list[Suspicion]:
    """Return what is wrong with the kind, from the first case that can be read.

    Logits may be probabilities; and what is declared as regions may be classes, whose probabilities sum to 1.
    """
    for case_id in cases.ids if cases.kind == "logits" or cases.regions is not None else ():
        try:
            if cases.regions is not None:
                member = next(cases.member_logits(case_id), None)
                return like_softmax(case_id, cases.read(case_id).logits if member is None else member)
            return wrong_kinds({case_id: cases.read(case_id).kind_warning})
        except InputError:
            continue
    return []


def like_softmax(case_id: str, logits: Tensor) -> list[Suspicion]:
    """Return the suspicion that regions are classes, if the probabilities of nearly all voxels sum to 1."""
    share = share_of_ones(logits)
    text = (
        f"probabilities of all regions sum to 1 at {100 * share:.4g} % of the voxels, as those of a softmax do. If "
        "these are classes that exclude each other, declare kind='probs' and no regions."
    )
    return [Suspicion(text, (case_id,))] if share > NEARLY_ALL else []


def single_folds(origin: str) -> list[Suspicion]:
    """Return what to know about predictions of single folds, if these are."""
    text = (
        "each case is predicted by the network of one fold, and the ensemble of all folds has other confidences. Apply "
        "what is fitted here to single networks, or fit on cases that the ensemble has predicted and not seen."
    )
    return [Suspicion(text)] if origin == SINGLE_FOLDS else []


def other_origin(fitted: str, applied: str) -> list[Suspicion]:
    """Return the suspicion that a calibrator of single networks meets predictions of their ensemble."""
    text = (
        "the calibrator was fitted on predictions of single folds, and these come from elsewhere: an ensemble of folds "
        "has other confidences. Fit on predictions like these, unless one network made them."
    )
    return [Suspicion(text)] if fitted == SINGLE_FOLDS != applied else []


class _Explanation(NamedTuple):
    """A reason why labels do not fit, in sentences, and how well they would fit without it."""

    fit: float
    suspicions: tuple[Suspicion, ...]


class _Fit(NamedTuple):
    """Fit of the labels of a case as they are, and otherwise."""

    id: str
    own: float
    other: float

    @property
    def gain(self) -> float:
        return self.other - self.own


def misplaced(profiles: Sequence[Profile], table: np.ndarray | None, num_classes: int) -> tuple[Suspicion, ...]:
    """Return the best explanation of labels that lie otherwise than the scores; empty if they fit as they are.

    The table counts label by winner over all cases, ``(C, C)``.
    """
    found = [turned(profiles), shifted(profiles), paired(profiles, num_classes), renumbered(table)]
    best = max((one for one in found if one is not None), key=lambda one: one.fit, default=None)
    return () if best is None else best.suspicions


def turned(profiles: Sequence[Profile]) -> _Explanation | None:
    """Return whether labels are mirrored or have their axes exchanged."""
    fits: dict[Turn, list[_Fit]] = {}
    owns: dict[str, float] = {}
    for profile in profiles:
        if not profile.turned or not np.isfinite(own := next(iter(profile.turned.values()))):
            continue
        owns[profile.id] = own
        for turn, other in list(profile.turned.items())[1:]:
            if np.isfinite(other):
                fits.setdefault(turn, []).append(_Fit(profile.id, own, other))
    common = {turn: found for turn, found in fits.items() if len(found) >= MOST * len(owns)}
    best = max(common, key=lambda turn: np.mean([fit.gain for fit in common[turn]]), default=None)
    if best is not None and _clear(common[best]):
        by_turn = {best: [fit for fit in common[best] if fit.gain > 0]}
    else:
        by_turn = _turned_alone(fits)
    changed = {fit.id: fit.other for found in by_turn.values() for fit in found}
    return _explained(owns, changed, [_turned_by(turn, found) for turn, found in by_turn.items()])


def _explained(own: Mapping[str, float], changed: Mapping[str, float], said: list[Suspicion]) -> _Explanation | None:
    return _Explanation(float(np.mean(list({**own, **changed}.values()))), tuple(said)) if said else None


def _clear(fits: Sequence[_Fit]) -> bool:
    """Whether a fit is clearly better, in the mean and in most cases."""
    gains = [fit.gain for fit in fits]
    most = sum(gain > 0 for gain in gains) >= MOST * len(gains)
    return bool(most and np.mean(gains) >= GAIN and np.mean([fit.other for fit in fits]) >= FIT)


def _turned_alone(fits: Mapping[Turn, Sequence[_Fit]]) -> dict[Turn, list[_Fit]]:
    """Return the cases that fit better by far, by what they fit best."""
    best: dict[str, tuple[Turn, _Fit]] = {}
    for turn, found in fits.items():
        for fit in found:
            if fit.id not in best or fit.other > best[fit.id][1].other:
                best[fit.id] = turn, fit
    by_turn: dict[Turn, list[_Fit]] = {}
    for turn, fit in best.values():
        if fit.gain >= LARGE_GAIN and fit.other >= LARGE_FIT:
            by_turn.setdefault(turn, []).append(fit)
    return by_turn


def _turned_by(turn: Turn, fits: Sequence[_Fit]) -> Suspicion:
    own, other = np.mean([fit.own for fit in fits]), np.mean([fit.other for fit in fits])
    what = "axes are exchanged" if turn.exchanges else "one of the two is mirrored"
    text = (
        f"labels fit clearly better as {turn} (agreement {other:.2f}, as they are {own:.2f}): {what}. "
        "Bring scores and labels into one orientation."
    )
    return Suspicion(text, tuple(fit.id for fit in fits))


def shifted(profiles: Sequence[Profile]) -> _Explanation | None:
    """Return whether labels lie a few voxels beside the scores, in most cases alike."""
    looked = [profile.id for profile in profiles if profile.shifted]
    fits: dict[Shift, list[_Fit]] = {}
    for profile in profiles:
        for shift, pair in profile.shifted.items():
            if pair[1] > pair[0]:
                fits.setdefault(shift, []).append(_Fit(profile.id, *pair))
    best = max(fits, key=lambda shift: sum(fit.gain for fit in fits[shift]), default=None)
    if best is None or len(fits[best]) < max(FEW_SHIFTED, MOST * len(looked)):
        return None
    own, other = (float(np.mean([fit[place] for fit in fits[best]])) for place in (1, 2))
    least = THEIR_GAIN if len(fits[best]) >= NEARLY_ALL_SHIFTED * len(looked) else GAIN_OF_SHIFT
    if other < FIT or other - own < (least if abs(best.by) > 1 else GAIN):
        return None
    text = f"labels fit clearly better {best} (agreement {other:.3f}, as they are {own:.3f}): one of the two is "
    ids = tuple(fit.id for fit in fits[best])
    return _Explanation(other, (Suspicion(f"{text}shifted. Check crops and origins.", ids),))


def paired(profiles: Sequence[Profile], num_classes: int) -> _Explanation | None:
    """Return whether scores have the labels of other cases."""
    by_space: dict[tuple[int, ...], list[Profile]] = {}
    owns: dict[str, float] = {}
    for profile in profiles:
        if profile.thumbnail is not None and np.isfinite(own := _fit(profile, profile, num_classes)):
            owns[profile.id] = own
            by_space.setdefault(profile.space, []).append(profile)
    partner: dict[str, tuple[str, float]] = {}
    for alike in by_space.values():
        partner |= _partners(alike, owns, num_classes) if len(alike) > 1 else {}
    if len(partner) < 2:
        return None
    pairs = listed([f"{case_id} those of {other}" for case_id, (other, _) in partner.items()])
    text = f"scores fit the labels of another case clearly better than their own ({pairs}). Check their names."
    return _explained(owns, {key: fit for key, (_, fit) in partner.items()}, [Suspicion(text, tuple(partner))])


def _partners(profiles: Sequence[Profile], owns: Mapping[str, float], num_classes: int) -> dict[str, tuple[str, float]]:
    """Return the cases whose scores fit another's labels, with that other case and how well they fit."""
    maps = [profile.thumbnail for profile in profiles if profile.thumbnail is not None]
    decisions, labels = (np.stack(column) for column in zip(*maps, strict=True))
    asked = np.unique(np.linspace(0, len(profiles) - 1, min(MOST_PAIRED, len(profiles))).astype(int))
    fits = np.nan_to_num(pair_agreement(decisions[asked], labels, num_classes), nan=-1.0)
    found = {}
    for case, best in zip(asked.tolist(), fits.argmax(axis=1).tolist(), strict=True):
        one, other = profiles[case], profiles[best]
        fit = _fit(one, other, num_classes)
        if one is not other and fit >= max(FIT, owns[one.id] + GAIN, owns[other.id] + GAIN):
            found[one.id] = other.id, fit
    return found


def _fit(scores: Profile, labels: Profile, num_classes: int) -> float:
    assert scores.thumbnail is not None
    assert labels.thumbnail is not None
    return agreement(labels.thumbnail.labels, scores.thumbnail.decision, num_classes).kappa


def renumbered(table: np.ndarray | None) -> _Explanation | None:
    """Return whether labels and scores count their classes differently."""
    numbers = {} if table is None else renumbering(table)
    if table is None or not numbers:
        return None
    order = np.arange(len(table))
    order[list(numbers)] = list(numbers.values())
    pairs = listed([f"label {label} is predicted as {number}" for label, number in numbers.items()])
    text = f"labels fit clearly better with their classes renumbered ({pairs}). Map one of the two numberings."
    return _Explanation(table_agreement(table[:, order]).kappa, (Suspicion(text),))


def renumbering(table: np.ndarray) -> dict[int, int]:
    """Return which classes clearly have other numbers; of a table of few voxels, none."""
    return better_numbers(table, GAIN_OF_CLASS, FIT, MOST) if table.sum() >= ENOUGH_VOXELS else {}
