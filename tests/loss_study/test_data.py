import hashlib

import numpy as np
import pytest

from paper.loss_study.data import FULL, SMALL, Chunk, Sizes, all_chunks, chunks, degrade, read_part, write_chunk
from segcal.demo.tasks import HELD_OUT, TRAINING, get_task
from segcal.studies.corruptions import corrupt

TINY = Sizes({"roads": 2, "tumour": 1, "streets": 1}, valid=1, cal=1, val=1, test=1)


def test_parts_of_the_held_out_cases_do_not_overlap():
    for sizes in (FULL, SMALL):
        parts = [
            {i for chunk in chunks("roads", part, sizes) for i in chunk.indices} for part in ("cal", "val", "test")
        ]
        assert [len(part) for part in parts] == [sizes.cal, sizes.val, sizes.test]
        assert len(set.union(*parts)) == sum(map(len, parts))


def test_every_test_case_has_a_degraded_copy_and_no_file_has_two_parts():
    tasks = ("roads", "tumour", "streets")
    for task in tasks:
        test, shifted = ([chunk.indices for chunk in chunks(task, part, FULL)] for part in ("test", "corrupted"))
        assert sum(map(len, test)) == FULL.test
        assert test == shifted
    names = [chunk.name for chunk in all_chunks(tasks, FULL)]
    assert len(set(names)) == len(names)


def test_a_degraded_volume_has_the_labels_of_the_case(tmp_path):
    for part in ("test", "corrupted"):
        for chunk in chunks("tumour", part, TINY):
            write_chunk(tmp_path, chunk)
    (case,) = read_part(tmp_path, "tumour", "test", TINY)
    (shifted,) = read_part(tmp_path, "tumour", "corrupted", TINY)
    assert case.id == shifted.id == "tumour_0002"
    np.testing.assert_array_equal(shifted.labels, case.labels)
    np.testing.assert_array_equal(shifted.image, degrade(case.image, "tumour_0002"))
    assert not np.array_equal(shifted.image, case.image)


def test_what_is_written_is_read_again(tmp_path):
    for part in ("train", "corrupted"):
        for chunk in chunks("roads", part, TINY):
            write_chunk(tmp_path, chunk)
    task = get_task("roads")
    train = read_part(tmp_path, "roads", "train", TINY)
    sample = task.sample(1, TRAINING)
    assert len(train) == 2
    np.testing.assert_array_equal(train[1].image, sample.image)
    np.testing.assert_array_equal(train[1].labels, sample.labels)
    (shifted,) = read_part(tmp_path, "roads", "corrupted", TINY)
    held_out = task.sample(2, HELD_OUT)
    assert shifted.id == "roads_0002"
    np.testing.assert_array_equal(shifted.image, corrupt(held_out.image, "roads_0002", "strong"))
    np.testing.assert_array_equal(shifted.labels, held_out.labels)
    assert not list(tmp_path.glob("*.part*"))


def test_a_file_is_named_after_its_first_case():
    assert Chunk("roads", "test", (18, 19)).name == "roads-test-018.npz"


KINDS = ("noise", "blur", "gain", "bias", "coarse")


def digest(name):
    return int(hashlib.sha256(name.encode()).hexdigest(), 16)


def name_of(kind):
    return next(name for name in map(str, range(100)) if KINDS[digest(name) % 5] == kind)


@pytest.fixture
def volume():
    """Two channels of odd sizes: nothing outside a box, and a hole in one channel alone."""
    values = np.random.default_rng(0).uniform(0.1, 1.2, (2, 41, 37, 6)).astype(np.float32)
    inside = np.zeros((41, 37, 6), bool)
    inside[1:38, 2:30, 1:6] = True
    values[:, ~inside] = 0
    values[1, 3, 4, 2] = 0
    return values, inside


def gaussian(sigma):
    place = np.arange(-int(4 * sigma + 0.5), int(4 * sigma + 0.5) + 1)
    weights = np.exp(-0.5 * (place / sigma) ** 2)
    return place, weights / weights.sum()


def expected_noise(values):
    n, m = np.random.default_rng(digest(name_of("noise"))).standard_normal((2, *values.shape), dtype=np.float32)
    return np.abs(values + 0.12 * (n + 1j * m))


def expected_blur(values):
    place, weights = gaussian(1.5)
    for axis in (1, 2):
        size = values.shape[axis]
        period = np.concatenate([np.arange(size), np.arange(size)[::-1]])  # the border is mirrored, its edge twice
        values = sum(
            weight * values.take(period[(np.arange(size) + step) % (2 * size)], axis)
            for step, weight in zip(place, weights, strict=True)
        )
    return values


def expected_gain(values):
    return 1.5 * values


def expected_bias(values):
    field = np.random.default_rng(digest(name_of("bias"))).standard_normal(values.shape[1:])
    place, weights = gaussian(12.0)
    for axis in range(3):
        field = sum(weight * np.roll(field, step, axis) for step, weight in zip(place, weights, strict=True))
    return values * np.exp(0.35 * field / np.sqrt(np.mean((field - field.mean()) ** 2)))


def expected_coarse(values):
    found = np.empty_like(values)
    for row in range(values.shape[1]):
        for column in range(values.shape[2]):
            found[:, row, column] = values[:, row - row % 2, column - column % 2]
    return found


EXPECTED = {
    "noise": expected_noise,
    "blur": expected_blur,
    "gain": expected_gain,
    "bias": expected_bias,
    "coarse": expected_coarse,
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_volume_is_changed_by_what_its_name_says(volume, kind):
    values, inside = volume
    before = values.copy()
    changed = degrade(values, name_of(kind))
    assert changed.dtype == np.float32
    np.testing.assert_allclose(changed, EXPECTED[kind](before.astype(np.float64)) * inside, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(values, before)
    assert np.abs(changed - before).mean() > 0.02


@pytest.mark.parametrize("kind", KINDS)
def test_where_no_channel_has_signal_nothing_appears(volume, kind):
    values, inside = volume
    changed = degrade(values, name_of(kind))
    assert (changed[:, ~inside] == 0).all()


def test_a_hole_in_one_channel_alone_is_no_place_without_signal(volume):
    assert degrade(volume[0], name_of("noise"))[1, 3, 4, 2] > 0


@pytest.mark.parametrize("kind", ["noise", "bias"])
def test_the_same_name_gives_the_same_and_another_one_gives_another(volume, kind):
    values, _ = volume
    names = [name for name in map(str, range(100)) if KINDS[digest(name) % 5] == kind][:2]
    first, again, other = (degrade(values, name) for name in (names[0], names[0], names[1]))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_every_change_happens_to_some_volume_of_the_study():
    names = [f"tumour_{index:04d}" for chunk in chunks("tumour", "corrupted", FULL) for index in chunk.indices]
    assert {KINDS[digest(name) % 5] for name in names} == set(KINDS)


def test_a_picture_gets_the_strong_corruption_of_the_benchmark():
    picture = np.random.default_rng(1).random((3, 12, 17), np.float32)
    for name in map(str, range(12)):  # of all kinds
        np.testing.assert_array_equal(degrade(picture, name), corrupt(picture, name, "strong"))
