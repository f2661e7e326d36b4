"""Finding voxels that hold one constant vector: padding that pretends to be a prediction.

nnU-Net fills the outside of its cropping box with (1, 0, ..., 0). Exported as logits, that vector has a softmax of
e / (e + C - 1), a confidence that no network gave; it then rules every fit and every metric (definitions 13.1).
A vector is looked for by its exact value: among real logits of a network, hardly two voxels are equal.
"""

from typing import NamedTuple

import numpy as np

# A share of the voxels that is worth a word, and how many voxels are looked at to find the candidate.
LARGE_SHARE = 0.1
SAMPLE = 4096


class Padding(NamedTuple):
    """One vector, and the share of the voxels that hold exactly it."""

    share: float
    vector: tuple[float, ...]

    @property
    def one_hot(self) -> bool:
        """Whether it is (1, 0, ..., 0) or another unit vector."""
        return sorted(self.vector) == [0.0] * (len(self.vector) - 1) + [1.0]


def find_padding(scores: np.ndarray, mask: np.ndarray | None = None) -> Padding | None:
    """Return the vector that fills a large share of the voxels, or None.

    Args:
        scores: ``(classes, *space)`` as stored.
        mask: True where the prediction is real; the rest is not looked at.

    >>> find_padding(np.concatenate([np.eye(2)[:, [0] * 9], np.arange(8.0).reshape(2, 4)], axis=1))
    Padding(share=0.6923076923076923, vector=(1.0, 0.0))
    """
    flat = scores.reshape(len(scores), -1)
    if mask is not None:
        flat = flat[:, mask.reshape(-1)]
    voxels = flat.shape[1]
    if voxels == 0:
        return None
    chosen = np.unique(np.linspace(0, voxels - 1, min(SAMPLE, voxels)).astype(np.int64))
    vectors, counts = np.unique(flat[:, chosen].T, axis=0, return_counts=True)
    candidate = vectors[counts.argmax()]
    if counts.max() < LARGE_SHARE / 2 * len(chosen):
        return None
    same = np.ones(voxels, bool)
    for plane, value in zip(flat, candidate, strict=True):
        same &= plane == value
    share = float(same.mean())
    return Padding(share, tuple(float(value) for value in candidate)) if share >= LARGE_SHARE else None
