r"""What is possible but seldom meant, said in one sentence: the sentence, and the margins of all rules.

"Clearly better" is always a margin of agreement beyond chance (:mod:`segcal.cases.agreement`), and the better fit must
be a fit at all (:data:`FIT`). The rules:

- *near chance*: over all cases together the agreement is below :data:`NEAR_CHANCE`, on enough voxels to say so, and
  nothing else explains it.
- *turned*: one turn fits better by :data:`GAIN` in the mean and better at all in most cases; or, where it is not one
  turn for all, single cases that fit better by :data:`LARGE_GAIN` and well (:data:`LARGE_FIT`).
- *paired otherwise*: scores fit the labels of another case of their shape better by :data:`GAIN` than their own, and
  better by as much than that case's own scores do. A network that fails on one case does not look like this: the labels
  that it resembles have better scores of their own. There must be two such cases, since files change places.
- *renumbered*: the classes of a cycle overlap by :data:`GAIN_OF_CLASS` more, in the mean, with the class that stands at
  their place, and most of them do; a class that is merely mistaken for another improves alone.
- *the same*: equal digests of the scores.

Where labels could be turned, paired otherwise or renumbered, the explanation that leaves the best fit is given alone:
mirrored labels may also resemble those of another case.
"""

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from segcal.cases.base import SINGLE_FOLDS, Cases
from segcal.errors import InputError, SuspicionWarning

NEAR_CHANCE = 0.1
ENOUGH_VOXELS = 1000
FIT = 0.3
GAIN = 0.1
LARGE_FIT = 0.4
LARGE_GAIN = 0.2
MOST = 0.75
GAIN_OF_CLASS = 0.2
LISTED = 5


@dataclass(frozen=True)
class Suspicion:
    """One sentence, and the cases it is about; none where it is about all of them."""

    text: str
    ids: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{listed(self.ids)}: {self.text}" if self.ids else self.text


def warn(suspicions: Iterable[Suspicion], level: int = 1) -> None:
    """Say suspicions as warnings, each one sentence.

    Args:
        suspicions: what was found.
        level: how many functions lie between this one and the user's line.
    """
    for suspicion in suspicions:
        warnings.warn(str(suspicion), SuspicionWarning, stacklevel=level + 2)


def listed(names: Sequence[str]) -> str:
    """Return a few names, and how many more there are.

    >>> listed(["a", "b", "c", "d", "e", "f", "g"])
    'a, b, c, d, e and 2 more'
    """
    shown = ", ".join(names[:LISTED])
    return shown if len(names) <= LISTED else f"{shown} and {len(names) - LISTED} more"


def like_probabilities(ids: Sequence[str]) -> list[Suspicion]:
    """Return the suspicion that scores declared as logits are probabilities, if there are such cases."""
    text = "scores are declared as logits, but all lie in 0 to 1 and sum to 1. Declare kind='probs' if so."
    return [Suspicion(text, tuple(ids))] if ids else []


def doubtful_kind(cases: Cases) -> list[Suspicion]:
    """Return the suspicion that scores declared as logits are probabilities, from the first case that can be read."""
    for case_id in cases.ids if cases.kind == "logits" else ():
        try:
            return like_probabilities([case_id] if cases.read(case_id).like_probs else [])
        except InputError:
            continue
    return []


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
