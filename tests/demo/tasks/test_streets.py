import numpy as np
import pytest

from segcal.demo.tasks import TASKS
from segcal.demo.tasks.street_view import PERSON, POLE, ROAD, SIGN, SKY
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
