"""Facts about labelled cases that a calibrator remembers, to judge new cases without labels.

A section of ``calibrator.json``: a few numbers per case and class, and one curve per class; no image content. Numbers
stand in texts, separated by spaces, because a list of them would take a line each. :mod:`segcal.trust` fills and reads
it; here is only its form.
"""

import copy
import hashlib
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from segcal.calibrators import saved_entry
from segcal.calibrators.base import Calibrator
from segcal.errors import ArtifactError

# 1 had no calibrators of folds.
VERSION = 2
# Where a case was judged by the calibrator itself, and not by that of a fold.
ITSELF = -1
# Numbers of a case, and numbers of a case for each class, in the order in which they are written.
OF_CASE = ("voxels", "size", "entropy", "disagreement")
OF_CLASS = (
    "mask", "prob", "hit", "spread", "edge", "edge_prob", "agreement", "truth", "found", "counted", "beside",
)  # fmt: skip
# How the cases stand to the fit; only the first makes every promise exact.
Source = Literal["held out", "validation", "out of fold"]
HELD_OUT: Source = "held out"
VALIDATION: Source = "validation"
OUT_OF_FOLD: Source = "out of fold"


class ReferenceCase(msgspec.Struct, frozen=True, omit_defaults=True):
    """One labelled case: its name, its group, :data:`OF_CASE`, and :data:`OF_CLASS` of one class after the other.

    `joint` counts voxels by label and by kind of decision, where that is not zero; "" in what 0.1 wrote.
    `fold` is the index of the calibrator of :attr:`Reference.folds` whose numbers these are.
    """

    id: str
    group: str
    numbers: str
    joint: str = ""
    fold: int = ITSELF


class LossCurves(msgspec.Struct, frozen=True):
    """Mean losses of one class at each threshold, and how many groups had the structure.

    Attributes:
        present: groups in which the structure is there.
        missed: of the voxels of the structure, those below the threshold.
        outranked: of the voxels of the structure, those whose classes down to it have more than the threshold.
        wrong: of the voxels at or above the threshold, those that are not of the structure; the largest share of this
            and all higher thresholds.
    """

    present: int
    missed: str
    outranked: str
    wrong: str


class Reference(msgspec.Struct, frozen=True, omit_defaults=True):
    """All cases, and what they belong to.

    Attributes:
        version: of this form.
        source: whether the cases had a part in the fit.
        calibrator: digest of the calibrator whose probabilities these are.
        members: how many members had a part in the predictions; 1 where they are not known.
        unit: of volumes.
        cases: one per case.
        curves: one per class.
        folds: the parameters of the calibrators that judged the cases of each fold, as safetensors.
        chosen: whether the kind or the strengths of these were chosen on the cases of the reference.
    """

    version: int
    source: Source
    calibrator: str
    members: int
    unit: str
    cases: tuple[ReferenceCase, ...]
    curves: tuple[LossCurves, ...]
    folds: tuple[bytes, ...] = ()
    chosen: bool = False

    @property
    def ids(self) -> set[str]:
        """The names of the cases, of which several raters have a row each."""
        return {case.id for case in self.cases}


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


def written_sparse(values: ArrayLike) -> str:
    """Return the numbers that are not zero as one text, each with its index.

    >>> written_sparse([0, 0.5, 0, 2]), read_sparse("1:0.5 3:2", 2, 2).tolist()
    ('1:0.5 3:2', [[0.0, 0.5], [0.0, 2.0]])
    """
    flat = np.asarray(values, np.float64).ravel()
    return " ".join(f"{place}:{flat[place]:.6g}" for place in np.flatnonzero(flat))


def read_sparse(text: str, *shape: int) -> NDArray[np.float64]:
    """Return such numbers in a shape."""
    flat = np.zeros(int(np.prod(shape)))
    try:
        for place, value in (word.split(":") for word in text.split()):
            flat[int(place)] = float(value)
    except (ValueError, IndexError):
        raise ArtifactError(
            f"the reference holds {text[:40]!r}, but places and numbers of {' x '.join(map(str, shape))} are needed. "
            "Fit again."
        ) from None
    return flat.reshape(shape)


def calibrator_digest(calibrator: Calibrator) -> str:
    """Return the digest of what a calibrator does: its kind and its parameters."""
    digest = hashlib.sha256(repr((saved_entry(calibrator), calibrator.num_classes)).encode())
    for name, value in sorted(calibrator.state_dict().items()):
        digest.update(name.encode() + value.detach().cpu().numpy().tobytes())
    return digest.hexdigest()


def packed(calibrator: Calibrator) -> bytes:
    """Return the parameters of a calibrator as safetensors."""
    return save_tensors({key: value.detach().cpu().contiguous() for key, value in calibrator.state_dict().items()})


def fold_calibrators(reference: Reference, calibrator: Calibrator) -> list[Calibrator]:
    """Return the calibrators of the folds, which are of the same kind as the calibrator."""
    last = max(case.fold for case in reference.cases)
    if last >= len(reference.folds) or min(case.fold for case in reference.cases) < ITSELF:
        raise ArtifactError(
            f"the reference has a case of fold {last}, but it has calibrators of {len(reference.folds)} folds. Copy "
            "the folder again, or fit again."
        )
    return [_unpacked(content, calibrator) for content in reference.folds]


def _unpacked(content: bytes, like: Calibrator) -> Calibrator:
    fresh = copy.deepcopy(like)
    try:
        tensors = load_tensors(content)
        wanted, found = (
            {key: (value.dtype, tuple(value.shape)) for key, value in each.items()}
            for each in (fresh.state_dict(), tensors)
        )
        if wanted != found or not all(bool(value.isfinite().all()) for value in tensors.values()):
            raise ValueError(f"holds {found}, but {wanted} is needed")
    except (SafetensorError, ValueError) as error:
        raise ArtifactError(
            f"the reference has a calibrator of a fold that cannot be read ({error}), but it must be as segcal wrote "
            "it. Copy the folder again, or fit again."
        ) from None
    fresh.load_state_dict(tensors)
    return fresh
