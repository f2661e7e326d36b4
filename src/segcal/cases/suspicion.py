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

from collections.abc import Sequence
from dataclasses import dataclass

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


def listed(names: Sequence[str]) -> str:
    """Return a few names, and how many more there are.

    >>> listed(["a", "b", "c", "d", "e", "f", "g"])
    'a, b, c, d, e and 2 more'
    """
    shown = ", ".join(names[:LISTED])
    return shown if len(names) <= LISTED else f"{shown} and {len(names) - LISTED} more"
