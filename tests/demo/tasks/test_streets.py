import numpy as np
import pytest

from segcal.demo.tasks import TASKS
from segcal.demo.tasks import streets as objects
from segcal.demo.tasks.scene import KEEP, Canvas
from segcal.demo.tasks.street_view import CAR, HEIGHT, PERSON, PLANTS, POLE, ROAD, SIGN, SKY, WIDTH, View
from segcal.types import IGNORED


@pytest.fixture(scope="module")
def samples():
    return [TASKS["streets"].sample(index) for index in range(10)]


def test_the_frame_is_void_all_around_and_black(samples):
    for image, labels, _ in samples:
        edges = [labels[0], labels[-1], labels[:, 0], labels[:, -1]]
        assert all((edge == IGNORED).all() for edge in edges)
        assert (image[:, 0] == 0).all()
        assert 0.02 < (labels == IGNORED).mean() < 0.25


def test_sky_is_up_and_the_road_is_down(samples):
    for _, labels, _ in samples:
        assert np.argwhere(labels == SKY)[:, 0].mean() < np.argwhere(labels == ROAD)[:, 0].mean()


def test_poles_signs_and_people_are_rare(samples):
    counted = np.concatenate([labels[labels != IGNORED] for _, labels, _ in samples])
    for kind in (POLE, SIGN, PERSON):
        assert 0 < (counted == kind).mean() < 0.02


def test_pictures_lie_between_zero_and_one(samples):
    for image, _, mask in samples:
        assert 0 <= image.min() < image.max() <= 1
        assert mask is None


@pytest.fixture
def view():
    found = View(np.random.default_rng(0))
    vars(found).update(focal=200, eye=1.5, horizon=60, centre=128, road=4, left=-7, right=7, haze=100)
    found.air = np.array([0.7, 0.8, 0.9])
    return found


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
