"""Tumour: a volume in four MR contrasts, five classes, nested irregular regions, almost all background.

It stands for brain tumour segmentation after treatment. The swelling fades out without an edge, so that where its
label ends is one rater's taste; the enhancing rim is thin and broken. A cavity looks like any other fluid; vessels
and spots in the white matter look like tumour and are not. The scan covers a tilted slab that may cut the brain,
and is cropped to the brain: outside `mask` there is no data. Tissues are soft shares between 0 and 1, so that a voxel
at a boundary holds two of them, as in a real scan.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from segcal.demo.tasks.scene import Classes, Field, Rng, Sample, Task, blobs, displaced, smooth
from segcal.types import IGNORED

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
BACKGROUND, NECROSIS, SWELLING, ENHANCING, CAVITY = range(5)
TISSUE = {
    NECROSIS: (0.34, 0.30, 0.86, 0.52),
    SWELLING: (0.58, 0.58, 0.80, 0.98),
    ENHANCING: (0.52, 1.12, 0.66, 0.80),
    CAVITY: (0.22, 0.24, 1.02, 0.22),
}


class NoiseFields:
    """Random fields of one case, in blobs of a given size in in-plane voxels.

    A field is made once for each size. Each use moves it by a random shift, around the edges. This takes a tenth of the
    time of a new one, and fields look unrelated.
    """

    def __init__(self, rng: Rng) -> None:
        self._rng = rng
        self._fields: dict[float, Field] = {}

    def __call__(self, size: float) -> Field:
        """Return a field of mean 0 and standard deviation 1."""
        if size not in self._fields:
            self._fields[size] = blobs(self._rng, SPACE, size, stretch=(1.0, 1.0, 1 / SLICE))
        return np.roll(self._fields[size], self._rng.integers(SPACE), axis=(0, 1, 2))


class Brain(NamedTuple):
    """A healthy brain; lengths are in in-plane voxels."""

    depth: Field  # distance to the surface, negative inside
    inside: Field  # the brain's share of each voxel
    white: Field  # the share of white matter, where tumours grow
    ventricle: Field  # the share of the fluid in the middle
    contrasts: Field  # (4, *space)
    axes: tuple[Field, Field, Field]  # coordinates of each voxel from the centre: back, side, up


def share(distance: Field, width: float = 1.0) -> Field:
    """Return how much of each voxel lies inside a surface at the given distance (negative inside)."""
    return np.clip(0.5 - distance / width, 0, 1).astype(np.float32)


def mixed(contrasts: Field, part: Field, intensity: tuple[float, ...]) -> Field:
    """Return the contrasts with a share of each voxel replaced by a tissue."""
    return contrasts + part * (np.array(intensity, np.float32)[:, None, None, None] - contrasts)


def draw_brain(rng: Rng, noise: NoiseFields) -> Brain:
    """Draw a brain of random size, position, tilt and folding."""
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
    nuclei = np.sqrt(((abs(side) - 9 * size) / 3) ** 2 + (back / 6) ** 2 + ((up + 2) / 6) ** 2) - 1
    contrasts = mixed(contrasts, np.maximum(cortex, share(nuclei * 3, 1.5)), GREY)
    contrasts = mixed(contrasts, np.maximum(outer * 0.85, ventricle), FLUID)
    vessels = np.clip(noise(1.0) - 2.6, 0, 1) * share(depth + 1)
    inside = share(depth)
    white = inside * (1 - cortex) * (1 - outer) * (1 - ventricle)
    return Brain(depth.astype(np.float32), inside, white, ventricle, mixed(contrasts, vessels, VESSEL), axes)


def _turned_axes(rng: Rng) -> tuple[Field, Field, Field]:
    grid: NDArray = np.mgrid[: SPACE[0], : SPACE[1], : SPACE[2]].astype(np.float32)
    centre = np.array([(size - 1) / 2 for size in SPACE]) + rng.normal(0, [1.0, 1.0, 0.5])
    back, side, up = (grid - centre[:, None, None, None]) * np.array([1, 1, SLICE])[:, None, None, None]
    turn, nod = rng.normal(0, 0.10), rng.normal(0, 0.08)
    back, side = back * np.cos(turn) - side * np.sin(turn), back * np.sin(turn) + side * np.cos(turn)
    up, back = up * np.cos(nod) - back * np.sin(nod), up * np.sin(nod) + back * np.cos(nod)
    return back.astype(np.float32), side.astype(np.float32), up.astype(np.float32)


def _ventricles(rng: Rng, up: Field, back: Field, side: Field, size: float) -> Field:
    """Return two horns beside the middle that bend apart at the front and at the back."""
    width = rng.uniform(1.6, 3.2) * size
    centre = 1.8 + width * 0.6 + 0.022 * back**2
    horn = np.sqrt(((abs(side) - centre) / width) ** 2 + (back / 13) ** 2 + ((up + 1) / 8) ** 2) - 1
    return share(horn * width)


def draw(rng: Rng) -> Sample:
    """Draw one brain with up to two tumours."""
    noise = NoiseFields(rng)
    brain = draw_brain(rng, noise)
    contrasts = _spots(rng, noise, brain)
    parts = np.zeros((5, *SPACE), np.float32)
    for _ in range(1 + int(rng.random() < 0.25)):
        contrasts = _grow(rng, noise, brain, contrasts, parts)
    labels = _rate(rng, noise, parts)
    mask = _field_of_view(rng, brain)
    image = _scan(rng, noise, brain, contrasts) * mask
    return Sample(image.astype(np.float32), np.where(mask, labels, IGNORED), mask)


def _grow(rng: Rng, noise: NoiseFields, brain: Brain, contrasts: Field, parts: Field) -> Field:
    """Add a tumour to the contrasts and to the shares of each class, which later tumours cover."""
    # Around a random voxel of the white matter that is not too near the surface.
    centre = int(rng.choice(np.flatnonzero((brain.white > 0.8) & (brain.depth < -5))))
    back, side, up = (axis - axis.flat[centre] for axis in brain.axes)
    stretch = rng.uniform(0.75, 1.3, 3)
    radius = float(rng.uniform(4.0, 8.0))
    ragged = 1.1 * noise(3.0) + 0.7 * noise(1.7)
    distance = np.sqrt((up / stretch[0]) ** 2 + (back / stretch[1]) ** 2 + (side / stretch[2]) ** 2) - radius + ragged
    spread = rng.uniform(1.0, 5.5)
    # Swelling follows the white matter, with fingers, and thins out over several voxels.
    fingers = distance - spread + 1.6 * noise(3.0) + 4 * (1 - smooth(brain.white, 1.0, (0, 1)))
    swelling = share(fingers, rng.uniform(2.5, 5.0)) * brain.inside * (1 - brain.ventricle)
    rim = rng.uniform(1.2, 2.6) + 0.8 * noise(1.7)
    core = share(distance, 1.4) * brain.inside
    inner = share(distance + np.maximum(rim, 0.1), 1.4) * core
    cavity: Field = np.zeros(SPACE, np.float32)
    if rng.random() < 0.5:  # treated: what was cut out is filled with fluid
        cut = rng.normal(0, 1, 3)
        plane = (up * cut[0] + back * cut[1] + side * cut[2]) / np.linalg.norm(cut) + rng.uniform(-3, 3)
        cavity = share(distance + 0.6, 1.4) * brain.inside * share(plane + 0.8 * noise(3.0), 1.2)
    patchy = np.clip(0.75 + 0.45 * noise(1.7), 0.1, 1)  # the rim is broken, and weak in places
    for kind, part in ((SWELLING, swelling), (ENHANCING, core * patchy), (NECROSIS, inner), (CAVITY, cavity)):
        contrasts = mixed(contrasts, part, TISSUE[kind])
        parts *= 1 - part
        parts[kind] += part
    return contrasts


def _spots(rng: Rng, noise: NoiseFields, brain: Brain) -> Field:
    """Add false swelling: caps around the ventricles and spots in the white matter."""
    caps = np.clip(smooth(brain.ventricle, 1.5, (0, 1)) * 1.6 - brain.ventricle, 0, 0.7) * rng.uniform(0, 1)
    spots = np.clip(noise(1.7) - rng.uniform(2.3, 3.2), 0, 1) * brain.white
    return mixed(brain.contrasts, np.maximum(caps, spots), (0.66, 0.66, 0.70, 0.84))


def _rate(rng: Rng, noise: NoiseFields, parts: Field) -> Classes:
    """Return one rater's labels: own threshold for faint swelling, an unsteady hand, tiny islands left out."""
    shares = parts.copy()
    shares[SWELLING] *= rng.lognormal(0, 0.35)
    shares[ENHANCING] *= rng.lognormal(0, 0.15)
    shares[BACKGROUND] = 1 - parts[1:].sum(axis=0)
    shares += 0.08 * np.stack([noise(1.7) for _ in range(5)]) * (parts[1:].sum(0) > 0.02)
    hand = [0.6 * noise(3.0), 0.6 * noise(3.0), 0.25 * noise(3.0)]
    return displaced(shares.argmax(axis=0), hand)


def _field_of_view(rng: Rng, brain: Brain) -> NDArray[np.bool_]:
    """Return the brain's box with a margin, cut by the ends of a tilted slab."""
    mask = np.zeros(SPACE, bool)
    mask[tuple(slice(max(place.min() - 1, 0), place.max() + 2) for place in np.nonzero(brain.inside > 0.5))] = True
    back, side, up = brain.axes
    height = up + back * rng.normal(0, 0.12) + side * rng.normal(0, 0.12)
    return mask & (height > -rng.uniform(17, 27)) & (height < rng.uniform(19, 28))


def _scan(rng: Rng, noise: NoiseFields, brain: Brain, contrasts: Field) -> Field:
    """Return the scan: a bias field, blur across slices, gain, noise; nothing outside the brain."""
    image = smooth(contrasts * brain.inside, 0.55, (1, 2))
    image = smooth(image, 0.45, (3,))
    texture = 0.03 * noise(1.0)
    level = rng.uniform(0.025, 0.055)
    for channel in range(4):
        bias = np.exp(0.10 * noise(18.0))
        image[channel] = (image[channel] + texture) * bias * rng.normal(1, 0.08)
    real = image + level * rng.standard_normal(image.shape, dtype=np.float32)
    imaginary = level * rng.standard_normal(image.shape, dtype=np.float32)
    return np.hypot(real, imaginary) * (brain.inside > 0.3)


PALETTE = {
    "background": (20, 20, 30), "necrosis": (210, 60, 60), "swelling": (80, 170, 90), "enhancing": (240, 210, 70),
    "cavity": (80, 140, 230),
}  # fmt: skip
TUMOUR = Task("tumour", 2, PALETTE, 4, SPACE, draw, SPACING)
