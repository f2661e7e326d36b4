"""Streets: a picture from a car, nine classes, thin and rare ones among them, a void border.

It stands for urban street scenes. Poles, signs and people are small and rare; leaves let the sky through and are
labelled solid; far objects are sometimes forgotten; the annotator's outline is off by a pixel or so; the frame of
the picture and the own bonnet have no label.
"""

import numpy as np
from numpy.typing import NDArray

from segcal.demo.tasks import street_objects as objects
from segcal.demo.tasks.base import Sample, Task
from segcal.demo.tasks.canvas import KEEP, Canvas
from segcal.demo.tasks.fields import Field, blobs, displaced, smooth
from segcal.demo.tasks.street_view import (
    CAR,
    HEIGHT,
    PERSON,
    POLE,
    WIDTH,
    View,
    draw_view,
    paint_background,
)
from segcal.types import IGNORED

# Beyond this distance the labels forget half of all small things.
FAR = 28.0


def draw(rng: np.random.Generator) -> Sample:
    """Draw one picture and its labels."""
    view = draw_view(rng)
    canvas = Canvas(HEIGHT, WIDTH)
    paint_background(rng, canvas, view)
    things = [(float(_distance(rng)), kind) for kind in _kinds(rng)]
    for distance, kind in sorted(things, reverse=True):  # the nearest last
        _put(rng, canvas, view, kind, distance)
    hand = [0.8 * blobs(rng, (HEIGHT, WIDTH), 4), 0.8 * blobs(rng, (HEIGHT, WIDTH), 4)]
    labels = displaced(canvas.labels, hand)
    image = _camera(rng, canvas.image)
    _frame(rng, canvas, image, labels)
    return Sample(image, labels, None)


def _kinds(rng: np.random.Generator) -> list[str]:
    """Return how many of what there are; a street is busy or empty, green or bare."""
    busy, green = rng.gamma(2, 0.5), rng.gamma(2, 0.5)
    often = {"tree": 4 * green, "lamp": 2.5, "sign": 2, "parked": 4 * busy, "driving": 1.5 * busy, "person": 3 * busy}
    counts = {kind: int(rng.poisson(rate)) for kind, rate in {**often, "clutter": 0.8}.items()}
    return [kind for kind, count in counts.items() for _ in range(count)]


def _distance(rng: np.random.Generator) -> float:
    # More things are far away than near: the ground seen grows with distance.
    return 5.5 * np.exp(rng.uniform(0, 1) ** 0.8 * 2.2)


def _put(rng: np.random.Generator, canvas: Canvas, view: View, kind: str, z: float) -> None:
    side = float(rng.choice([-1.0, 1.0]))
    pavement = (abs(view.left) if side < 0 else view.right) - view.road
    forgotten = z > FAR and rng.random() < 0.5
    on_pavement = side * (view.road + pavement * float(rng.uniform(0.2, 0.9)))
    at_kerb = side * (view.road + 0.35)
    if kind == "tree":
        objects.tree(rng, canvas, view, side * (view.road + pavement * float(rng.uniform(0.3, 1.2))), z)
    elif kind == "lamp":
        objects.lamp(rng, canvas, view, at_kerb, z, KEEP if forgotten else POLE)
    elif kind == "sign":
        objects.sign(rng, canvas, view, at_kerb, z, forgotten)
    elif kind == "parked":
        objects.car(rng, canvas, view, side * (view.road - 1.05), z, CAR)
    elif kind == "driving":
        objects.car(rng, canvas, view, float(rng.choice([-0.45, 0.45])) * view.road, z + 4, CAR)
    elif kind == "person":
        across = side * view.road * float(rng.uniform(0, 1)) if rng.random() < 0.2 else on_pavement
        objects.person(rng, canvas, view, across, z, KEEP if forgotten else PERSON)
    else:
        objects.clutter(rng, canvas, view, on_pavement, z)


def _camera(rng: np.random.Generator, image: Field) -> Field:
    """Return what the camera makes of the scene: blur, exposure, colour cast, glare and noise."""
    shape = image.shape[1:]
    image = smooth(np.clip(image, 0, 1), float(rng.uniform(0.45, 0.9)), (1, 2))
    exposure = float(rng.lognormal(0, 0.22)) * rng.normal(1, 0.04, (3, 1, 1))
    glare = rng.uniform(0, 0.12) * np.clip(blobs(rng, shape, 40), 0, 2)
    image = (image * exposure) ** float(rng.uniform(0.85, 1.15)) + glare
    return np.clip(image + rng.normal(0, rng.uniform(0.01, 0.03), image.shape), 0, 1).astype(np.float32)


def _frame(rng: np.random.Generator, canvas: Canvas, image: Field, labels: NDArray[np.int64]) -> None:
    """Blank the uneven border that lens correction leaves, and the own bonnet; neither has a label."""
    bow = rng.uniform(2, 4) + 2.0 * ((canvas.columns - WIDTH / 2) / (WIDTH / 2)) ** 2
    sides = rng.uniform(2, 4) + 2.0 * ((canvas.rows - HEIGHT / 2) / (HEIGHT / 2)) ** 2
    border = np.minimum(canvas.rows, HEIGHT - 1 - canvas.rows) < bow
    border |= np.minimum(canvas.columns, WIDTH - 1 - canvas.columns) < sides
    rise = rng.uniform(4, 14)
    bonnet = canvas.rows > HEIGHT - rise + 10 * ((canvas.columns - WIDTH / 2) / (WIDTH / 2)) ** 2
    image[:, bonnet] = image[:, bonnet] * 0.3 + 0.12
    image[:, border] = 0
    labels[border | bonnet] = IGNORED


STREETS = Task(
    name="streets",
    key=3,
    class_names=("sky", "building", "road", "pavement", "plants", "pole", "sign", "car", "person"),
    channels=3,
    space=(HEIGHT, WIDTH),
    spacing=(1.0, 1.0),
    background=False,
    palette=(
        (120, 170, 220),
        (110, 100, 100),
        (128, 64, 128),
        (220, 130, 180),
        (90, 140, 50),
        (200, 200, 120),
        (230, 200, 40),
        (30, 60, 160),
        (220, 30, 60),
    ),
    draw=draw,
)
