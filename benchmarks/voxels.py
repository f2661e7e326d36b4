"""Real voxels for the fitting benchmark: pooled logits and labels, drawn once and the same for everybody."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

# The label that does not count.
IGNORE = {"camvid": 11, "roads": None}


@dataclass(frozen=True)
class Voxels:
    """Logits ``(C, N)`` float32 as a network writes them, and labels ``(N,)`` int64."""

    logits: np.ndarray
    labels: np.ndarray

    @property
    def rows(self) -> np.ndarray:
        """Return the logits as ``(N, C)``, the form that libraries for classifiers ask for."""
        return np.ascontiguousarray(self.logits.T)


def draw(predictions: Path, data: Path, task: str, counts: tuple[int, int], seed: int = 0) -> tuple[Voxels, Voxels]:
    """Draw calibration and validation voxels, uniformly, from two thirds and one third of the cases.

    Args:
        predictions: folder with ``TASK/member_M/CASE.npy``, logits ``(C, *space)``; members are averaged.
        data: folder with ``TASK/labels/CASE.png``.
        task: which task.
        counts: how many voxels of each.
        seed: of the division and of the draw.
    """
    members = sorted((predictions / task).glob("member_*"))
    cases = sorted(path.stem for path in members[0].glob("*.npy"))
    rng = np.random.default_rng(seed)
    cases = [cases[i] for i in rng.permutation(len(cases))]
    cut = 2 * len(cases) // 3
    drawn = []
    for part, count in ((cases[:cut], counts[0]), (cases[cut:], counts[1])):
        voxels = [
            _draw_from_case(members, data / task / "labels", case, IGNORE[task], -(-count // len(part)), rng)
            for case in part
        ]
        logits = np.concatenate([v.logits for v in voxels], axis=1)[:, :count]
        drawn.append(Voxels(np.ascontiguousarray(logits), np.concatenate([v.labels for v in voxels])[:count]))
    return drawn[0], drawn[1]


def _draw_from_case(
    members: list[Path], labels: Path, case: str, ignore: int | None, count: int, rng: np.random.Generator
) -> Voxels:
    y = np.asarray(Image.open(labels / f"{case}.png")).reshape(-1).astype(np.int64)
    valid = np.arange(len(y)) if ignore is None else np.flatnonzero(y != ignore)
    chosen = np.sort(rng.choice(valid, min(count, len(valid)), replace=False))
    pooled = 0.0
    for member in members:
        logits = np.load(member / f"{case}.npy", mmap_mode="r")
        pooled = pooled + logits.reshape(len(logits), -1)[:, chosen].astype(np.float32)
    return Voxels(pooled / len(members), y[chosen])
