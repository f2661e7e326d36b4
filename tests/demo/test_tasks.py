"""The embedded tasks: promises of every task, what is drawn in each, and the canvas they are drawn on."""

import numpy as np
import pytest

from segcal.demo.tasks import HELD_OUT, TASKS, TRAINING, VALIDATION, get_task
from segcal.demo.tasks import streets as street
from segcal.demo.tasks.roads import draw_network
from segcal.demo.tasks.scene import KEEP, Canvas, blobs, clouds, displaced, smooth
from segcal.demo.tasks.tumour import ENHANCING, NECROSIS, SWELLING
from segcal.errors import InputError
from segcal.types import IGNORED

RED = (1.0, 0.0, 0.0)


@pytest.fixture(scope="module")
def drawn():
    return {name: [task.sample(index) for index in range(8)] for name, task in TASKS.items()}


@pytest.mark.parametrize("name", TASKS)
def test_a_sample_has_the_types_and_sizes_that_the_task_states(name, drawn):
    task = TASKS[name]
    assert len(set(task.space)) == len(task.space) == len(task.spacing)
    for image, labels, mask in drawn[name]:
        assert (image.dtype, image.shape) == (np.float32, (task.channels, *task.space))
        assert (labels.dtype, labels.shape) == (np.int64, task.space)
        assert np.isfinite(image).all()
        assert set(np.unique(labels)) <= {IGNORED, *range(task.num_classes)}
        if mask is None:  # a picture
            assert 0 <= image.min() < image.max() <= 1
        else:
            assert (mask.dtype, mask.shape) == (np.bool_, task.space)
            assert (image[:, ~mask] == 0).all()
            assert np.array_equal(labels == IGNORED, ~mask)


@pytest.mark.parametrize("name", TASKS)
def test_the_same_numbers_give_the_same_case_and_others_another_whatever_the_global_state(name, drawn):
    task, first = TASKS[name], drawn[name][0]
    np.random.seed(3)
    before = np.random.get_state()[1].copy()
    again = task.sample(0, HELD_OUT)
    assert np.array_equal(np.random.get_state()[1], before)
    assert np.array_equal(again.image, first.image)
    assert np.array_equal(again.labels, first.labels)
    for other in (drawn[name][1], task.sample(0, TRAINING), task.sample(0, VALIDATION)):
        assert not np.array_equal(other.labels, first.labels)


@pytest.mark.parametrize("name", TASKS)
def test_every_class_appears_and_class_sizes_differ_a_lot(name, drawn):
    counted = np.concatenate([labels[labels != IGNORED] for _, labels, _ in drawn[name]])
    counts = np.bincount(counted, minlength=TASKS[name].num_classes)
    assert (counts > 0).all()
    assert counts.max() > 5 * counts.min()


def test_an_unknown_task_lists_the_known_ones():
    with pytest.raises(InputError, match=r"no embedded task is named 'cells'\. Choose one of: roads, tumour, streets"):
        get_task("cells")


def test_an_ellipse_and_a_polygon_in_either_order_cover_their_areas():
    canvas = Canvas(40, 60)
    canvas.ellipse((20, 25), (8, 12), RED, label=3)
    assert (canvas.labels == 3).sum() == pytest.approx(np.pi * 8 * 12, rel=0.03)
    assert canvas.image[0].sum() == pytest.approx(np.pi * 8 * 12, rel=0.03)
    assert (canvas.image[1:] == 0).all()
    corners = [(5, 5), (10, 40), (30, 35), (25, 8)]
    rows, columns = np.array(corners).T
    area = abs(rows @ np.roll(columns, 1) - columns @ np.roll(rows, 1)) / 2
    for given in (corners, corners[::-1]):
        canvas = Canvas(40, 60)
        canvas.polygon(given, RED, label=2)
        assert (canvas.labels == 2).sum() == pytest.approx(area, rel=0.03)


def test_a_line_has_its_width_and_a_boundary_pixel_mixes_both_colours():
    canvas = Canvas(30, 50)
    canvas.line((15, 10), (15, 40), 4, RED, label=1)
    assert canvas.image[0, :, 25].sum() == pytest.approx(4)
    assert (canvas.labels[:, 25] == 1).sum() in (3, 4, 5)
    assert canvas.image[0, 15, 44] == 0
    canvas = Canvas(9, 11)
    canvas.polygon([(-5, -5), (-5, 4.25), (20, 4.25), (20, -5)], RED)
    assert canvas.image[0, 4, 2:7].tolist() == pytest.approx([1, 1, 0.75, 0, 0])
    assert (canvas.labels == 0).all()  # painting without a label keeps the labels


@pytest.mark.parametrize("shape", [(48, 60), (20, 24, 31)])
@pytest.mark.parametrize("make", [lambda rng, shape: blobs(rng, shape, 2.0), clouds])
def test_fields_have_mean_zero_and_standard_deviation_one(make, shape, rng):
    field = make(rng, shape)
    assert field.shape == shape
    assert field.mean() == pytest.approx(0, abs=1e-3)
    assert field.std() == pytest.approx(1, abs=1e-3)


def test_blobs_are_as_wide_as_asked_along_each_axis():
    def correlation(field, axis, apart):
        return float((field * np.roll(field, apart, axis)).mean())

    field = blobs(np.random.default_rng(1), (200, 220), 3.0)
    # White noise smoothed by a Gaussian of deviation s has correlation exp(-d^2 / 4 s^2) at distance d.
    for apart in (2, 5):
        for axis in (0, 1):
            assert correlation(field, axis, apart) == pytest.approx(np.exp(-(apart**2) / 36), abs=0.06)
    thin = blobs(np.random.default_rng(1), (200, 220), 4.0, stretch=(1.0, 0.25))
    assert correlation(thin, 0, 3) > 0.8
    assert correlation(thin, 1, 3) < 0.3


def test_smoothing_keeps_constants_and_spreads_a_point_and_a_shift_stops_at_the_border():
    assert smooth(np.full((5, 7), 2.0, np.float32), 1.0, (0, 1)) == pytest.approx(2.0)
    point = np.zeros((1, 15), np.float32)
    point[0, 7] = 1
    taps = np.exp(-0.5 * np.arange(-3, 4) ** 2)
    assert smooth(point, 1.0, (1,))[0, 4:11] == pytest.approx(taps / taps.sum(), abs=1e-6)
    moved = displaced(np.arange(12).reshape(3, 4), [np.zeros((3, 4)), np.full((3, 4), 1.2)])
    assert moved[0].tolist() == [1, 2, 3, 3]


def test_roads_are_thin_and_a_small_part_of_the_picture(drawn):
    assert 0.05 < np.mean([labels.mean() for _, labels, _ in drawn["roads"]]) < 0.2
    for _, labels, mask in drawn["roads"]:
        assert mask is None
        assert set(np.unique(labels)) == {0, 1}
        thick = labels == 1
        for _ in range(6):  # six erosions by one pixel leave nothing but the crossings
            thick = thick[1:-1, 1:-1] & thick[:-2, 1:-1] & thick[2:, 1:-1] & thick[1:-1, :-2] & thick[1:-1, 2:]
        assert thick.sum() < 0.02 * labels.sum()


def test_the_network_of_roads_is_connected():
    for seed in range(5):
        roads = draw_network(np.random.default_rng(seed), 120, 160)
        ends = [(tuple(road.path[0].round(6)), tuple(road.path[-1].round(6))) for road in roads]
        reached, grown = {ends[0][0]}, True
        while grown:
            found = {end for pair in ends if reached & set(pair) for end in pair}
            grown = not found <= reached
            reached |= found
        assert reached == {end for pair in ends for end in pair}


def test_more_than_95_percent_of_a_brain_are_background_and_much_is_outside(drawn):
    counted = np.concatenate([labels[labels != IGNORED] for _, labels, _ in drawn["tumour"]])
    assert (counted == 0).mean() > 0.95
    assert all((labels > 0).any() for _, labels, _ in drawn["tumour"])
    assert 0.2 < np.mean([1 - mask.mean() for _, _, mask in drawn["tumour"]]) < 0.6


def distance_to_the_middle(labels, kind):
    """Return the mean distance of a class's voxels to the centre of all tumour voxels, in millimetres."""
    centre = np.argwhere(labels > 0).mean(axis=0)
    return np.linalg.norm((np.argwhere(labels == kind) - centre) * TASKS["tumour"].spacing, axis=1).mean()


def test_regions_of_a_tumour_are_nested_and_contrast_agent_lights_up_the_rim(drawn):
    nested, lit = [], []
    for image, labels, _ in drawn["tumour"]:
        there = [(labels == kind).sum() > 20 for kind in (NECROSIS, ENHANCING, SWELLING)]
        if all(there):
            inner, rim, outer = (distance_to_the_middle(labels, kind) for kind in (NECROSIS, ENHANCING, SWELLING))
            nested.append(inner < rim < outer)
        if there[1]:
            lit.append(image[1][labels == ENHANCING].mean() - image[0][labels == ENHANCING].mean())
    assert len(nested) >= 4
    assert np.mean(nested) > 0.6
    assert np.mean(lit) > 0.15


def test_the_frame_of_a_street_is_void_and_black_sky_is_up_and_the_road_is_down(drawn):
    for image, labels, _ in drawn["streets"]:
        assert all((edge == IGNORED).all() for edge in (labels[0], labels[-1], labels[:, 0], labels[:, -1]))
        assert (image[:, 0] == 0).all()
        assert 0.02 < (labels == IGNORED).mean() < 0.25
        assert np.argwhere(labels == street.SKY)[:, 0].mean() < np.argwhere(labels == street.ROAD)[:, 0].mean()
    counted = np.concatenate([labels[labels != IGNORED] for _, labels, _ in drawn["streets"]])
    for kind in (street.POLE, street.SIGN, street.PERSON):
        assert 0 < (counted == kind).mean() < 0.02


@pytest.fixture
def view():
    found = street.View(np.random.default_rng(0))
    vars(found).update(focal=200, eye=1.5, horizon=60, centre=128, road=4, left=-7, right=7, haze=100)
    found.air = np.array([0.7, 0.8, 0.9])
    return found


def test_points_are_placed_in_perspective_and_haze_takes_the_colour_of_the_air(view):
    assert view.place(0, 1.5, 12) == (60, 128)  # at eye level straight ahead: the vanishing point
    assert view.place(2, 0, 10) == (60 + 200 * 1.5 / 10, 128 + 200 * 2 / 10)
    near, far = view.place(3, 0, 5), view.place(3, 0, 500)
    assert near[0] > far[0] > 60
    assert near[1] > far[1] > 128
    red = np.array(RED)
    assert view.hazy(red, 0.0).tolist() == [1, 0, 0]
    assert view.hazy(red, 1e6) == pytest.approx(view.air)
    assert view.hazy(red[:, None, None], np.array([[0.0, 1e6]]))[:, 0, 1] == pytest.approx(view.air)


def painted(view, thing, *place, **options):
    canvas = Canvas(street.HEIGHT, street.WIDTH)
    thing(np.random.default_rng(0), canvas, view, *place, **options)
    return canvas


THINGS = {
    street.tree: street.PLANTS, street.lamp: street.POLE, street.car: street.CAR, street.person: street.PERSON,
    street.clutter: IGNORED,
}  # fmt: skip


@pytest.mark.parametrize(("thing", "label"), THINGS.items())
def test_a_thing_has_its_class_is_larger_when_near_and_does_no_harm_beside_the_picture(view, thing, label):
    near, far = (painted(view, thing, 2.0, distance).labels for distance in (10.0, 25.0))
    assert (near == label).sum() > 2 * (far == label).sum() > 0
    assert set(np.unique(near)) == {0, label}
    for place in ((60.0, 8.0), (-60.0, 8.0), (6.0, 5.5)):
        assert np.isfinite(painted(view, thing, *place).image).all()


def test_a_sign_stands_on_its_post_and_a_person_is_as_tall_as_a_person(view):
    labels = painted(view, street.sign, 3.0, 10.0, forgotten=False).labels
    assert np.argwhere(labels == street.SIGN)[:, 0].mean() < np.argwhere(labels == street.POLE)[:, 0].mean()
    rows = np.argwhere(painted(view, street.person, 0.0, 10.0).labels == street.PERSON)[:, 0]
    assert 1.4 < (rows.max() - rows.min() + 1) / 20 < 2.1  # 20 pixels a metre


def test_what_the_labels_forget_is_still_in_the_picture(view):
    for thing, how in (
        (street.lamp, {"label": KEEP}),
        (street.person, {"label": KEEP}),
        (street.sign, {"forgotten": True}),
    ):
        canvas = painted(view, thing, 2.0, 10.0, **how)
        assert (canvas.labels == 0).all()
        assert canvas.image.max() > 0
