import numpy as np
import pytest

from segcal.demo.tasks.canvas import Canvas

RED = (1.0, 0.0, 0.0)


def test_an_ellipse_covers_its_area():
    canvas = Canvas(40, 60)
    canvas.ellipse((20, 25), (8, 12), RED, label=3)
    assert (canvas.labels == 3).sum() == pytest.approx(np.pi * 8 * 12, rel=0.03)
    assert canvas.image[0].sum() == pytest.approx(np.pi * 8 * 12, rel=0.03)
    assert (canvas.image[1:] == 0).all()


@pytest.mark.parametrize("turned", [False, True])
def test_a_polygon_covers_its_area_in_either_order(turned):
    corners = [(5, 5), (10, 40), (30, 35), (25, 8)]
    rows, columns = np.array(corners).T
    area = abs(rows @ np.roll(columns, 1) - columns @ np.roll(rows, 1)) / 2
    canvas = Canvas(40, 60)
    canvas.polygon(corners[::-1] if turned else corners, RED, label=2)
    assert (canvas.labels == 2).sum() == pytest.approx(area, rel=0.03)


def test_a_line_has_its_width():
    canvas = Canvas(30, 50)
    canvas.line((15, 10), (15, 40), 4, RED, label=1)
    assert canvas.image[0, :, 25].sum() == pytest.approx(4)
    assert (canvas.labels[:, 25] == 1).sum() in (3, 4, 5)
    assert canvas.image[0, 15, 44] == 0


def test_a_boundary_pixel_mixes_both_colours():
    canvas = Canvas(9, 11)
    canvas.polygon([(-5, -5), (-5, 4.25), (20, 4.25), (20, -5)], RED)
    assert canvas.image[0, 4, 2:7].tolist() == pytest.approx([1, 1, 0.75, 0, 0])


def test_shapes_outside_the_picture_change_nothing():
    canvas = Canvas(9, 11)
    canvas.ellipse((-30, 5), (3, 3), RED, label=1)
    canvas.line((50, 50), (60, 60), 3, RED, label=1)
    canvas.polygon([(5, 90), (9, 95), (9, 90)], RED, label=1)
    assert (canvas.labels == 0).all()
    assert (canvas.image == 0).all()


def test_painting_without_a_label_keeps_the_labels():
    canvas = Canvas(9, 11)
    canvas.ellipse((4, 5), (3, 3), RED)
    assert (canvas.labels == 0).all()
    assert canvas.image.sum() > 0
