"""What a calibrator remembers of labelled cases, so that new ones without labels can be judged against them.

A section of ``calibrator.json``: a few numbers per case and class, and one curve per class; no image content. Numbers
stand in texts, separated by spaces, because a list of them would take a line each. :mod:`segcal.trust` fills and reads
it; here is only its form.
"""

import hashlib
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from segcal.calibrators import saved_entry
from segcal.calibrators.base import Calibrator
from segcal.errors import ArtifactError

VERSION = 1
# Numbers of a case, and numbers of a case for each class, in the order in which they are written.
OF_CASE = ("voxels", "size", "entropy", "disagreement")
OF_CLASS = (
    "mask", "prob", "hit", "spread", "edge", "edge_prob", "agreement", "truth", "found", "counted",
)  # fmt: skip
# How the cases stand to the fit; only the first makes every promise exact.
Source = Literal["held out", "validation", "out of fold"]
HELD_OUT: Source = "held out"
VALIDATION: Source = "validation"
OUT_OF_FOLD: Source = "out of fold"


class ReferenceCase(msgspec.Struct, frozen=True):
    """One labelled case: its name, its group, :data:`OF_CASE`, and :data:`OF_CLASS` of one class after the other."""

    id: str
    group: str
    numbers: str


class LossCurves(msgspec.Struct, frozen=True):
    """Mean losses of one class at each threshold, and how many draws had the structure.

    Attributes:
        present: draws in which the structure is there.
        missed: of the voxels of the structure, those below the threshold.
        outranked: of the voxels of the structure, those whose classes down to it have more than the threshold.
        wrong: of the voxels at or above the threshold, those that are not of the structure; the largest share of this
            and all higher thresholds.
    """

    present: int
    missed: str
    outranked: str
    wrong: str


class Reference(msgspec.Struct, frozen=True):
    """All cases, and what they belong to.

    Attributes:
        version: of this form.
        source: whether the cases had a part in the fit.
        calibrator: digest of the calibrator whose probabilities these are.
        members: how many members had a part in the predictions; 1 where they are not known.
        unit: of volumes.
        cases: one per case.
        curves: one per class.
    """

    version: int
    source: Source
    calibrator: str
    members: int
    unit: str
    cases: tuple[ReferenceCase, ...]
    curves: tuple[LossCurves, ...]


def written_numbers(values: ArrayLike) -> str:
    """Return numbers as one text, six digits each.

    >>> written_numbers([1, 0.25, float("nan")])
    '1 0.25 nan'
    """
    return " ".join(f"{value:.6g}" for value in np.asarray(values, np.float64).ravel())


def read_numbers(text: str, *shape: int) -> NDArray[np.float64]:
    """Return the numbers of a text in a shape."""
    try:
        return np.array([float(word) for word in text.split()]).reshape(shape)
    except ValueError:
        raise ArtifactError(
            f"the reference holds {text[:40]!r}, but {' x '.join(map(str, shape))} numbers are needed. Fit again."
        ) from None


def calibrator_digest(calibrator: Calibrator) -> str:
    """Return the digest of what a calibrator does: its kind and its parameters."""
    digest = hashlib.sha256(repr((saved_entry(calibrator), calibrator.num_classes)).encode())
    for name, value in sorted(calibrator.state_dict().items()):
        digest.update(name.encode() + value.detach().cpu().numpy().tobytes())
    return digest.hexdigest()
