from dataclasses import replace

import numpy as np

from segcal.demo.tasks.road_network import draw_network, shifted


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
