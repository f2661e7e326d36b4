"""A brain-like volume in four MR contrasts, before anything grows in it.

Tissues are soft shares between 0 and 1, so that a voxel at a boundary holds two of them, as in a real scan.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from segcal.demo.tasks.fields import Field, blobs

# Slices are the last axis, as in most medical files: PyTorch's fast 3-D convolutions want the long axes first.
SPACE = (72, 64, 24)
# Thick slices: a voxel is 6 mm high and 2.4 mm wide.
SPACING = (2.4, 2.4, 6.0)
SLICE = SPACING[2] / SPACING[0]
# Mean intensity of each tissue in T1, T1 with contrast agent, T2 and FLAIR.
WHITE = (0.86, 0.86, 0.38, 0.46)
GREY = (0.54, 0.56, 0.60, 0.64)
FLUID = (0.16, 0.16, 1.00, 0.12)
VESSEL = (0.55, 1.15, 0.30, 0.45)


class Noise:
    """Random fields of one case, in blobs of a given size in in-plane voxels.

    A field is made once for each size and then moved by a random shift, around the edges, each time it is asked for:
    a tenth of the time of a new one, and the shift hides the kinship.
    """

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._fields: dict[float, Field] = {}

    def __call__(self, size: float) -> Field:
        """Return a field of mean 0 and standard deviation 1."""
        if size not in self._fields:
            self._fields[size] = blobs(self._rng, SPACE, size, stretch=(1.0, 1.0, 1 / SLICE))
        return np.roll(self._fields[size], self._rng.integers(SPACE), axis=(0, 1, 2))


@dataclass(frozen=True)
class Brain:
    """A healthy brain.

    Attributes:
        depth: distance to the surface in in-plane voxels, negative inside.
        inside: the brain's share of each voxel.
        white: the share of white matter, where tumours grow.
        ventricle: the share of the fluid in the middle.
        contrasts: ``(4, *space)``.
        axes: coordinates of each voxel from the centre (back, side, up), in in-plane voxels.
    """

    depth: Field
    inside: Field
    white: Field
    ventricle: Field
    contrasts: Field
    axes: tuple[Field, Field, Field]


def share(distance: Field, width: float = 1.0) -> Field:
    """Return how much of a voxel lies inside a surface at the given distance (negative inside)."""
    return np.clip(0.5 - distance / width, 0, 1).astype(np.float32)


def mixed(contrasts: Field, part: Field, intensity: tuple[float, ...]) -> Field:
    """Return the contrasts with a share of each voxel replaced by a tissue."""
    return contrasts + part * (np.array(intensity, np.float32)[:, None, None, None] - contrasts)


def draw_brain(rng: np.random.Generator, noise: Noise) -> Brain:
    """Draw a brain of random size, place, tilt and folding."""
    axes = _turned_axes(rng)
    back, side, up = axes
    size = rng.uniform(0.92, 1.06)
    radii = np.array([27.0, 31.0, 25.5]) * size * rng.normal(1, 0.02, 3)
    # A superellipsoid: fuller than an ellipsoid, as a head is.
    reach = (abs(up / radii[0]) ** 2.5 + abs(back / radii[1]) ** 2.5 + abs(side / radii[2]) ** 2.5) ** 0.4
    fold = noise(1.7)
    depth = (reach - 1) * 26 + 0.5 * noise(5.0) + 0.4 * fold
    cortex = share(-depth - 3.4 - 2.6 * fold, 1.6)
    # Fluid in the folds, and in the fissure between the halves, which is open towards the surface.
    fissure = abs(side + 0.7 * noise(9.0)) - 1.0 + 3 * np.clip(-depth / 8 - 0.5, 0, 1)
    folds = share(-depth - 0.8 - 3.2 * np.clip(fold - 0.5, 0, 2), 1.2)
    outer = np.maximum(folds, share(fissure, 1.5))
    ventricle = _ventricles(rng, up, back, side, size) * (1 - share(-depth - 4))
    contrasts = np.zeros((4, *SPACE), np.float32) + np.array(WHITE, np.float32)[:, None, None, None]
    contrasts = mixed(contrasts, np.maximum(cortex, _deep_grey(up, back, side, size)), GREY)
    contrasts = mixed(contrasts, np.maximum(outer * 0.85, ventricle), FLUID)
    vessels = np.clip(noise(1.0) - 2.6, 0, 1) * share(depth + 1)
    inside = share(depth)
    white = inside * (1 - cortex) * (1 - outer) * (1 - ventricle)
    return Brain(depth.astype(np.float32), inside, white, ventricle, mixed(contrasts, vessels, VESSEL), axes)


def _turned_axes(rng: np.random.Generator) -> tuple[Field, Field, Field]:
    grid: NDArray = np.mgrid[: SPACE[0], : SPACE[1], : SPACE[2]].astype(np.float32)
    centre = np.array([(size - 1) / 2 for size in SPACE]) + rng.normal(0, [1.0, 1.0, 0.5])
    back, side, up = (grid - centre[:, None, None, None]) * np.array([1, 1, SLICE])[:, None, None, None]
    turn, nod = rng.normal(0, 0.10), rng.normal(0, 0.08)
    back, side = back * np.cos(turn) - side * np.sin(turn), back * np.sin(turn) + side * np.cos(turn)
    up, back = up * np.cos(nod) - back * np.sin(nod), up * np.sin(nod) + back * np.cos(nod)
    return back.astype(np.float32), side.astype(np.float32), up.astype(np.float32)


def _ventricles(rng: np.random.Generator, up: Field, back: Field, side: Field, size: float) -> Field:
    """Return two horns beside the middle that bend apart at the front and at the back."""
    width = rng.uniform(1.6, 3.2) * size
    centre = 1.8 + width * 0.6 + 0.022 * back**2
    horn = np.sqrt(((abs(side) - centre) / width) ** 2 + (back / 13) ** 2 + ((up + 1) / 8) ** 2) - 1
    return share(horn * width)


def _deep_grey(up: Field, back: Field, side: Field, size: float) -> Field:
    nuclei = np.sqrt(((abs(side) - 9 * size) / 3) ** 2 + (back / 6) ** 2 + ((up + 2) / 6) ** 2) - 1
    return share(nuclei * 3, 1.5)
