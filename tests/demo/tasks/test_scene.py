"""The promises of every embedded task."""

import numpy as np
import pytest

from segcal.demo.tasks import HELD_OUT, TASKS, TRAINING, VALIDATION, get_task
from segcal.demo.tasks.scene import Canvas, blobs, clouds, displaced, smooth
from segcal.errors import InputError
from segcal.types import IGNORED


@pytest.fixture(scope="module")
def drawn():
    return {name: [task.sample(index) for index in range(6)] for name, task in TASKS.items()}


@pytest.mark.parametrize("name", TASKS)
def test_a_sample_has_the_types_and_sizes_that_the_task_states(name, drawn):
    task = TASKS[name]
    assert len(set(task.space)) == len(task.space) == len(task.spacing)
    assert len(task.palette) == task.num_classes
    for image, labels, mask in drawn[name]:
        assert (image.dtype, image.shape) == (np.float32, (task.channels, *task.space))
        assert (labels.dtype, labels.shape) == (np.int64, task.space)
        assert np.isfinite(image).all()
        assert set(np.unique(labels)) <= {IGNORED, *range(task.num_classes)}
        if mask is not None:
            assert (mask.dtype, mask.shape) == (np.bool_, task.space)
            assert (labels[~mask] == IGNORED).all()


@pytest.mark.parametrize("name", TASKS)
def test_the_same_numbers_give_the_same_case_and_others_another(name, drawn):
    task, first = TASKS[name], drawn[name][0]
    again = task.sample(0, HELD_OUT)
    assert np.array_equal(again.image, first.image)
    assert np.array_equal(again.labels, first.labels)
    for other in (drawn[name][1], task.sample(0, TRAINING), task.sample(0, VALIDATION)):
        assert not np.array_equal(other.labels, first.labels)


@pytest.mark.parametrize("name", TASKS)
def test_drawing_touches_no_global_random_state(name):
    np.random.seed(3)
    before = np.random.get_state()[1].copy()
    TASKS[name].sample(1)
    assert np.array_equal(np.random.get_state()[1], before)


@pytest.mark.parametrize("name", TASKS)
def test_every_class_appears_and_class_sizes_differ_a_lot(name, drawn):
    counts = sum(
        np.bincount(labels[labels != IGNORED], minlength=TASKS[name].num_classes) for _, labels, _ in drawn[name]
    )
    assert (counts > 0).all()
    assert counts.max() > 5 * counts.min()


def test_an_unknown_task_lists_the_known_ones():
    with pytest.raises(InputError, match=r"no embedded task is named 'cells'\. Choose one of: roads, tumour, streets"):
        get_task("cells")


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


@pytest.mark.parametrize("shape", [(48, 60), (20, 24, 31)])
@pytest.mark.parametrize("make", [lambda rng, shape: blobs(rng, shape, 2.0), clouds])
def test_fields_have_mean_zero_and_standard_deviation_one(make, shape):
    field = make(np.random.default_rng(0), shape)
    assert field.shape == shape
    assert field.mean() == pytest.approx(0, abs=1e-3)
    assert field.std() == pytest.approx(1, abs=1e-3)


def neighbour_correlation(field, axis, apart):
    return float((field * np.roll(field, apart, axis)).mean())


def test_blobs_are_as_wide_as_asked():
    field = blobs(np.random.default_rng(1), (200, 220), 3.0)
    # White noise smoothed by a Gaussian of deviation s has correlation exp(-d^2 / 4 s^2) at distance d.
    for apart in (2, 5):
        expected = np.exp(-(apart**2) / 36)
        assert neighbour_correlation(field, 0, apart) == pytest.approx(expected, abs=0.06)
        assert neighbour_correlation(field, 1, apart) == pytest.approx(expected, abs=0.06)


def test_blobs_can_be_thinner_along_one_axis():
    field = blobs(np.random.default_rng(1), (200, 220), 4.0, stretch=(1.0, 0.25))
    assert neighbour_correlation(field, 0, 3) > 0.8
    assert neighbour_correlation(field, 1, 3) < 0.3


def test_smoothing_keeps_constants_and_spreads_a_point():
    assert smooth(np.full((5, 7), 2.0, np.float32), 1.0, (0, 1)) == pytest.approx(2.0)
    point = np.zeros((1, 15), np.float32)
    point[0, 7] = 1
    spread = smooth(point, 1.0, (1,))[0]
    taps = np.exp(-0.5 * np.arange(-3, 4) ** 2)
    assert spread[4:11] == pytest.approx(taps / taps.sum(), abs=1e-6)


def test_a_shift_reads_from_the_moved_place_and_stops_at_the_border():
    array = np.arange(12).reshape(3, 4)
    moved = displaced(array, [np.zeros((3, 4)), np.full((3, 4), 1.2)])
    assert moved[0].tolist() == [1, 2, 3, 3]
