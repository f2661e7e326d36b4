import numpy as np
import pytest

from segcal.demo.tasks import street_objects as objects
from segcal.demo.tasks.canvas import KEEP, Canvas
from segcal.demo.tasks.street_view import CAR, HEIGHT, PERSON, PLANTS, POLE, SIGN, WIDTH, View
from segcal.types import IGNORED


@pytest.fixture
def view():
    return View(200, 1.5, 60, 128, 4, -7, 7, 100, np.array([0.7, 0.8, 0.9]))


def painted(view, thing, *place, seed=0, **options):
    canvas = Canvas(HEIGHT, WIDTH)
    thing(np.random.default_rng(seed), canvas, view, *place, **options)
    return canvas


@pytest.mark.parametrize(
    ("thing", "label"),
    [
        (objects.tree, PLANTS),
        (objects.lamp, POLE),
        (objects.car, CAR),
        (objects.person, PERSON),
        (objects.clutter, IGNORED),
    ],
)
def test_a_thing_has_its_class_and_is_larger_when_it_is_near(view, thing, label):
    near, far = (painted(view, thing, 2.0, distance).labels == label for distance in (10.0, 25.0))
    assert near.sum() > 2 * far.sum() > 0
    assert set(np.unique(painted(view, thing, 2.0, 10.0).labels)) == {0, label}


def test_a_sign_stands_on_its_post(view):
    labels = painted(view, objects.sign, 3.0, 10.0, forgotten=False).labels
    assert np.argwhere(labels == SIGN)[:, 0].mean() < np.argwhere(labels == POLE)[:, 0].mean()


def test_a_person_is_as_tall_as_a_person(view):
    rows = np.argwhere(painted(view, objects.person, 0.0, 10.0).labels == PERSON)[:, 0]
    assert 1.4 < (rows.max() - rows.min() + 1) / 20 < 2.1  # 20 pixels a metre


@pytest.mark.parametrize("thing", [objects.lamp, objects.person])
def test_what_the_labels_forget_is_still_in_the_picture(view, thing):
    canvas = painted(view, thing, 2.0, 10.0, label=KEEP)
    assert (canvas.labels == 0).all()
    assert canvas.image.max() > 0
    forgotten = painted(view, objects.sign, 2.0, 10.0, forgotten=True)
    assert (forgotten.labels == 0).all()


@pytest.mark.parametrize("place", [(60.0, 8.0), (-60.0, 8.0), (6.0, 5.5)])
def test_things_beside_the_picture_do_no_harm(view, place):
    for thing in (objects.tree, objects.lamp, objects.car, objects.person, objects.clutter):
        assert np.isfinite(painted(view, thing, *place).image).all()
