import numpy as np
import pytest

from segcal.demo.tasks.scene import Canvas
from segcal.demo.tasks.street_view import HEIGHT, PAVEMENT, ROAD, SKY, WIDTH, View, paint_background


def view():
    found = View(np.random.default_rng(0))
    vars(found).update(focal=200, eye=1.5, horizon=60, centre=128, road=4, left=-7, right=7, haze=100)
    found.air = np.array([0.7, 0.8, 0.9])
    return found


def test_points_are_placed_in_perspective():
    assert view().place(0, 1.5, 12) == (60, 128)  # at eye level straight ahead: the vanishing point
    assert view().place(2, 0, 10) == (60 + 200 * 1.5 / 10, 128 + 200 * 2 / 10)
    near, far = view().place(3, 0, 5), view().place(3, 0, 500)
    assert near[0] > far[0] > 60
    assert near[1] > far[1] > 128


def test_haze_takes_the_colour_of_the_air():
    red = np.array([1.0, 0.0, 0.0])
    assert view().hazy(red, 0.0).tolist() == [1, 0, 0]
    assert view().hazy(red, 1e6) == pytest.approx(view().air)
    field = view().hazy(red[:, None, None], np.array([[0.0, 1e6]]))
    assert field[:, 0, 1] == pytest.approx(view().air)


def test_sky_is_above_and_the_road_below_between_its_pavements():
    canvas, rng = Canvas(HEIGHT, WIDTH), np.random.default_rng(0)
    paint_background(rng, canvas, view())
    assert (canvas.labels[5, 118:138] == SKY).all()
    assert (canvas.labels[150, 118:138] == ROAD).all()
    row = 110  # 50 rows below the horizon: 6 m away, 33.3 pixels a metre
    across = canvas.labels[row]
    assert (across[128 - 130 : 128 + 130] == ROAD).all()
    row = 80  # 15 m away, 13.3 pixels a metre: road to 53 pixels beside the middle, pavement to 93
    assert (canvas.labels[row, 128 - 50 : 128 + 50] == ROAD).all()
    assert (canvas.labels[row, 128 + 57 : 128 + 90] == PAVEMENT).all()


def test_streets_differ():
    views = [View(np.random.default_rng(seed)) for seed in range(20)]
    assert len({round(one.road, 3) for one in views}) == 20
    assert all(one.left < -one.road < one.road < one.right for one in views)
