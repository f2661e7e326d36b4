import numpy as np
import pytest

from segcal.demo.tasks import TASKS


@pytest.fixture(scope="module")
def samples():
    return [TASKS["roads"].sample(index) for index in range(8)]


def test_roads_are_thin_and_a_small_part_of_the_picture(samples):
    share = np.mean([sample.labels.mean() for sample in samples])
    assert 0.05 < share < 0.2
    for _, labels, _ in samples:
        thick = labels == 1
        for _ in range(6):  # six erosions by one pixel leave nothing but the crossings
            thick = thick[1:-1, 1:-1] & thick[:-2, 1:-1] & thick[2:, 1:-1] & thick[1:-1, :-2] & thick[1:-1, 2:]
        assert thick.sum() < 0.02 * labels.sum()


def test_pictures_lie_between_zero_and_one_and_have_everything_labelled(samples):
    for image, labels, mask in samples:
        assert 0 <= image.min() < image.max() <= 1
        assert mask is None
        assert set(np.unique(labels)) == {0, 1}
