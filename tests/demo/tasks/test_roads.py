from dataclasses import replace

import numpy as np
import pytest

from segcal.demo.tasks import TASKS
from segcal.demo.tasks.roads import draw_network, shifted


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


def test_the_network_is_connected():
    for seed in range(5):
        roads = draw_network(np.random.default_rng(seed), 120, 160)
        ends = [(tuple(road.path[0].round(6)), tuple(road.path[-1].round(6))) for road in roads]
        reached, grown = {ends[0][0]}, True
        while grown:
            found = {end for pair in ends if reached & set(pair) for end in pair}
            grown = not found <= reached
            reached |= found
        assert reached == {end for pair in ends for end in pair}


def test_the_map_misses_some_roads_and_moves_the_rest_a_little():
    rng = np.random.default_rng(0)
    roads = [road for _ in range(20) for road in draw_network(rng, 120, 160)]
    mapped = [road for road in roads if road.mapped]
    assert 0.7 < len(mapped) / len(roads) < 0.95
    moves = np.array(
        [
            moved.path[0] - road.path[0]
            for seed in range(30)
            for moved, road in zip(shifted(np.random.default_rng(seed), mapped[:20]), mapped[:20], strict=True)
        ]
    )
    assert 0.8 < moves.std() < 2.0


def test_a_road_that_is_not_mapped_is_left_out():
    roads = draw_network(np.random.default_rng(0), 120, 160)
    none = [replace(road, mapped=False) for road in roads]
    assert shifted(np.random.default_rng(0), none) == []
