"""Tumour: a volume in four MR contrasts, five classes, nested irregular regions, almost all background.

It stands for brain tumour segmentation after treatment. The swelling fades out without an edge, so that where its
label ends is one rater's taste; the enhancing rim is thin and broken; a cavity looks like any other fluid; vessels
and spots in the white matter look like tumour and are not. The scan covers a tilted slab that may cut the brain,
and is cropped to the brain: outside `mask` there is no data.
"""

import numpy as np
from numpy.typing import NDArray

from segcal.demo.tasks.base import Sample, Task
from segcal.demo.tasks.brain import SPACE, SPACING, Brain, Noise, draw_brain, mixed, share
from segcal.demo.tasks.fields import Field, displaced, smooth
from segcal.types import IGNORED

BACKGROUND, NECROSIS, SWELLING, ENHANCING, CAVITY = range(5)
# Mean intensity in T1, T1 with contrast agent, T2 and FLAIR.
TISSUE = {
    NECROSIS: (0.34, 0.30, 0.86, 0.52),
    SWELLING: (0.58, 0.58, 0.80, 0.98),
    ENHANCING: (0.52, 1.12, 0.66, 0.80),
    CAVITY: (0.22, 0.24, 1.02, 0.22),
}


def draw(rng: np.random.Generator) -> Sample:
    """Draw one brain with up to two tumours."""
    noise = Noise(rng)
    brain = draw_brain(rng, noise)
    contrasts = _spots(rng, noise, brain)
    parts = np.zeros((5, *SPACE), np.float32)
    for _ in range(1 + int(rng.random() < 0.25)):
        contrasts = _grow(rng, noise, brain, contrasts, parts)
    labels = _rate(rng, noise, parts)
    mask = _field_of_view(rng, brain)
    image = _scan(rng, noise, brain, contrasts) * mask
    return Sample(image.astype(np.float32), np.where(mask, labels, IGNORED), mask)


def _grow(rng: np.random.Generator, noise: Noise, brain: Brain, contrasts: Field, parts: Field) -> Field:
    """Add a tumour to the contrasts and to the shares of each class, which later tumours cover."""
    back, side, up = _around_a_centre(rng, brain)
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


def _around_a_centre(rng: np.random.Generator, brain: Brain) -> list[Field]:
    """Return coordinates around a random place in the white matter that is not too near the surface."""
    places = np.flatnonzero((brain.white > 0.8) & (brain.depth < -5))
    place = int(rng.choice(places))
    return [axis - axis.flat[place] for axis in brain.axes]


def _spots(rng: np.random.Generator, noise: Noise, brain: Brain) -> Field:
    """Add what looks like swelling and is none: caps around the ventricles and spots in the white matter."""
    caps = np.clip(smooth(brain.ventricle, 1.5, (0, 1)) * 1.6 - brain.ventricle, 0, 0.7) * rng.uniform(0, 1)
    spots = np.clip(noise(1.7) - rng.uniform(2.3, 3.2), 0, 1) * brain.white
    return mixed(brain.contrasts, np.maximum(caps, spots), (0.66, 0.66, 0.70, 0.84))


def _rate(rng: np.random.Generator, noise: Noise, parts: Field) -> NDArray[np.int64]:
    """Return one rater's labels: own threshold for faint swelling, an unsteady hand, tiny islands left out."""
    shares = parts.copy()
    shares[SWELLING] *= rng.lognormal(0, 0.35)
    shares[ENHANCING] *= rng.lognormal(0, 0.15)
    shares[BACKGROUND] = 1 - parts[1:].sum(axis=0)
    shares += 0.08 * np.stack([noise(1.7) for _ in range(5)]) * (parts[1:].sum(0) > 0.02)
    hand = [0.6 * noise(3.0), 0.6 * noise(3.0), 0.25 * noise(3.0)]
    return displaced(shares.argmax(axis=0), hand)


def _field_of_view(rng: np.random.Generator, brain: Brain) -> NDArray[np.bool_]:
    """Return the brain's box with a margin, cut by the ends of a tilted slab."""
    mask = np.zeros(SPACE, bool)
    mask[tuple(slice(max(place.min() - 1, 0), place.max() + 2) for place in np.nonzero(brain.inside > 0.5))] = True
    back, side, up = brain.axes
    height = up + back * rng.normal(0, 0.12) + side * rng.normal(0, 0.12)
    return mask & (height > -rng.uniform(17, 27)) & (height < rng.uniform(19, 28))


def _scan(rng: np.random.Generator, noise: Noise, brain: Brain, contrasts: Field) -> Field:
    """Return what the scanner makes of it: a bias field, blur across slices, gain, noise; nothing outside the brain."""
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


TUMOUR = Task(
    name="tumour",
    key=2,
    class_names=("background", "necrosis", "swelling", "enhancing", "cavity"),
    channels=4,
    space=SPACE,
    spacing=SPACING,
    background=True,
    palette=((20, 20, 30), (210, 60, 60), (80, 170, 90), (240, 210, 70), (80, 140, 230)),
    draw=draw,
)
