r"""A bounded sample of the voxels of a case, for numbers that no table of counts holds.

A case of at most :data:`MOST` voxels that count is kept whole, so that what is read from it is exact. Of a larger one,
MOST voxels are drawn without replacement, each set as likely as any other. Of these the first :data:`MOST_WHOLE` keep
all their log-probabilities, for kernels that compare pairs. The sample depends on the labels alone: before and after
calibration it is the same voxels, on every device and in every run.

Each sampled voxel has a key, and a sum keeps the voxels with the smallest ones. The keys are the k smallest of N
independent exponential variables, made one after the other as :math:`\sum_{i < j} E_i / (N - i)`. The sum of two
samples is therefore a sample of the voxels of both, in whatever order cases are added.
"""

import zlib
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from segcal.statistics.additive import AdditiveTable

MOST = 1 << 15
MOST_WHOLE = 1 << 11


@dataclass(frozen=True)
class VoxelSample(AdditiveTable):
    """Voxels of a case, in the order of their keys."""

    voxels: int  # how many they were drawn from
    key: np.ndarray  # (drawn,) float64, rising
    logit: np.ndarray  # log of confidence / (1 - confidence), float64
    right: np.ndarray  # whether the prediction is right, int8
    label: np.ndarray  # (whole,) int64, the true class of the first ones
    log_probs: np.ndarray  # (whole, classes) float64, of the first ones

    def __add__(self, other: Self) -> Self:
        """Return a sample of the voxels of both."""
        pairs = {name: (getattr(self, name), getattr(other, name)) for name in ("key", "logit", "right")}
        drawn = np.argsort(np.concatenate(pairs["key"]), kind="stable")[:MOST]
        # The first ones of the sum are among the first ones of each.
        keys = np.concatenate([one.key[: len(one.label)] for one in (self, other)])
        whole = np.argsort(keys, kind="stable")[:MOST_WHOLE]
        return type(self)(
            voxels=self.voxels + other.voxels,
            **{name: np.concatenate(pair)[drawn] for name, pair in pairs.items()},
            label=np.concatenate([self.label, other.label])[whole],
            log_probs=np.concatenate([self.log_probs, other.log_probs])[whole],
        )


def sample_voxels(scores: Tensor, labels: Tensor, reference: np.ndarray | None = None) -> VoxelSample:
    """Draw voxels of one case.

    Args:
        scores: ``(classes, *space)``, of any floating type, on any device; the softmax is taken here, in float64.
        labels: ``(*space)``; negative ones do not count.
        reference: ``(*space)``, the prediction that stays where no class is strictly above it.
    """
    truth = labels.reshape(-1).cpu().numpy()
    counts = np.flatnonzero(truth >= 0)
    size = min(len(counts), MOST)
    rng = np.random.default_rng(zlib.crc32(truth.tobytes()))
    key = np.cumsum(rng.standard_exponential(size) / np.arange(len(counts), len(counts) - size, -1))
    where = counts[rng.choice(len(counts), size, replace=False)] if size else counts
    columns = scores.reshape(len(scores), -1)[:, torch.from_numpy(where).to(scores.device)]
    log_probs = torch.log_softmax(columns.to("cpu", torch.float64), 0).numpy()
    top, prediction = log_probs.max(0, initial=-np.inf), log_probs.argmax(0)
    if reference is not None:
        old = np.asarray(reference).reshape(-1)[where].astype(np.int64)
        prediction = np.where(log_probs[old, np.arange(size)] == top, old, prediction)
    rest = log_probs.copy()
    rest[log_probs.argmax(0), np.arange(size)] = -np.inf
    logit = top - np.logaddexp.reduce(rest, axis=0)
    right = (prediction == truth[where]).astype(np.int8)
    label, whole = truth[where[:MOST_WHOLE]], np.ascontiguousarray(log_probs[:, :MOST_WHOLE].T)
    return VoxelSample(len(counts), key, logit, right, label, whole)
