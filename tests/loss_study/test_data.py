"""What networks are trained and tested on, and which there are: embedded tasks, degraded copies, real data, plans."""

import hashlib

import nibabel
import numpy as np
import pytest
import torch
from PIL import Image

from paper.loss_study import plan, real_data
from paper.loss_study.backbones import BACKBONES
from paper.loss_study.data import FULL, SMALL, Sizes, all_chunks, chunks, degrade, read_part, write_chunk
from paper.loss_study.plan import MAIN, VARIANTS, Unit, plan_units
from paper.loss_study.real import CORE, LOSSES, loss_of, plan_real
from paper.loss_study.real_data import PARTS, find_parts, groups, pack_root, pictures, read_case
from segcal.demo.tasks import HELD_OUT, TRAINING, get_task
from segcal.errors import InputError
from segcal.losses import Dice, make_loss
from segcal.studies.corruptions import corrupt

TINY = Sizes({"roads": 2, "tumour": 1, "streets": 1}, valid=1, cal=1, val=1, test=1)
KINDS = ("noise", "blur", "gain", "bias", "coarse")


def test_parts_do_not_overlap_and_every_test_case_has_a_degraded_copy():
    for sizes in (FULL, SMALL):
        parts = [
            {i for chunk in chunks("roads", part, sizes) for i in chunk.indices} for part in ("cal", "val", "test")
        ]
        assert [len(part) for part in parts] == [sizes.cal, sizes.val, sizes.test]
        assert len(set.union(*parts)) == sum(map(len, parts))
    tasks = ("roads", "tumour", "streets")
    for task in tasks:
        test, shifted = ([chunk.indices for chunk in chunks(task, part, FULL)] for part in ("test", "corrupted"))
        assert sum(map(len, test)) == FULL.test
        assert test == shifted
    names = [chunk.name for chunk in all_chunks(tasks, FULL)]
    assert len(set(names)) == len(names)
    volumes = [f"tumour_{index:04d}" for chunk in chunks("tumour", "corrupted", FULL) for index in chunk.indices]
    assert {KINDS[digest(name) % 5] for name in volumes} == set(KINDS)


@pytest.mark.parametrize("task", ["roads", "tumour"])
def test_what_is_written_is_read_again(tmp_path, task):
    for part in ("train", "test", "corrupted"):
        for chunk in chunks(task, part, TINY):
            write_chunk(tmp_path, chunk)
    last = read_part(tmp_path, task, "train", TINY)[-1]
    sample = get_task(task).sample(TINY.train[task] - 1, TRAINING)
    np.testing.assert_array_equal(last.image, sample.image)
    np.testing.assert_array_equal(last.labels, sample.labels)
    (case,) = read_part(tmp_path, task, "test", TINY)
    np.testing.assert_array_equal(case.image, get_task(task).sample(2, HELD_OUT).image)
    (shifted,) = read_part(tmp_path, task, "corrupted", TINY)
    assert case.id == shifted.id == f"{task}_0002"
    np.testing.assert_array_equal(shifted.image, degrade(case.image, case.id))
    np.testing.assert_array_equal(shifted.labels, case.labels)
    assert not np.array_equal(shifted.image, case.image)


def digest(name):
    return int(hashlib.sha256(name.encode()).hexdigest(), 16)


def names_of(kind):
    return [name for name in map(str, range(100)) if KINDS[digest(name) % 5] == kind]


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
    n, m = np.random.default_rng(digest(names_of("noise")[0])).standard_normal((2, *values.shape), dtype=np.float32)
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


def expected_bias(values):
    field = np.random.default_rng(digest(names_of("bias")[0])).standard_normal(values.shape[1:])
    place, weights = gaussian(12.0)
    for axis in range(3):
        field = sum(weight * np.roll(field, step, axis) for step, weight in zip(place, weights, strict=True))
    return values * np.exp(0.35 * field / np.sqrt(np.mean((field - field.mean()) ** 2)))


def expected_coarse(values):
    rows, columns = (np.arange(size) - np.arange(size) % 2 for size in values.shape[1:3])
    return values[:, rows][:, :, columns]


EXPECTED = {
    "noise": expected_noise,
    "blur": expected_blur,
    "gain": lambda values: 1.5 * values,
    "bias": expected_bias,
    "coarse": expected_coarse,
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_volume_is_changed_by_what_its_name_says(volume, kind):
    values, inside = volume
    before = values.copy()
    first, other = names_of(kind)[:2]
    changed = degrade(values, first)
    assert changed.dtype == np.float32
    np.testing.assert_allclose(changed, EXPECTED[kind](before.astype(np.float64)) * inside, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(values, before)
    assert np.abs(changed - before).mean() > 0.02
    assert (changed[:, ~inside] == 0).all()  # where no channel has signal, nothing appears
    np.testing.assert_array_equal(degrade(values, first), changed)
    assert np.array_equal(degrade(values, other), changed) == (kind not in ("noise", "bias"))
    if kind == "noise":
        assert changed[1, 3, 4, 2] > 0  # a hole in one channel alone is no place without signal


def test_a_picture_gets_the_strong_corruption_of_the_benchmark():
    picture = np.random.default_rng(1).random((3, 12, 17), np.float32)
    for name in map(str, range(12)):  # of all kinds
        np.testing.assert_array_equal(degrade(picture, name), corrupt(picture, name, "strong"))


def test_every_variant_is_a_loss_with_options_it_knows_and_those_of_the_paper():
    for name, options in VARIANTS.values():
        loss = make_loss(name, **options)
        assert all(getattr(loss, key) == value for key, value in options.items())
    wanted = {"gamma": 3.0, "sigma": 2.0, "margin": 5.0, "smoothing": 0.1}
    for name in MAIN:
        assert all(value == wanted.get(key, 0.1) for key, value in VARIANTS[name][1].items()), name


def test_networks_of_the_main_table_come_first_and_every_comparison_finds_its_own():
    units = plan_units(3)
    assert len(units) == len(set(units)) == len({unit.name for unit in units})
    main = [unit for unit in units if unit.main]
    assert units[: len(main)] == main
    assert len(main) == 3 * len(MAIN) * 3
    assert [unit.seed for unit in main] == sorted(unit.seed for unit in main)
    for task in ("roads", "tumour", "streets"):
        for variants in [*plan.SENSITIVITY.values(), *plan.SIGMAS.values()]:
            assert {Unit(task, variant, 0) for variant in variants} <= set(units)
    for backbone in BACKBONES:
        wanted = {Unit(plan.BACKBONE_TASK, variant, 0, backbone) for variant in plan.BACKBONE_LOSSES}
        assert wanted <= set(units)
    for share in plan.SHARES:
        assert {Unit("roads", variant, 0, share=share) for variant in MAIN} <= set(units)
    assert {unit.task for unit in plan_units(1, ("tumour",))} == {"tumour"}


def test_losses_with_dice_have_it_once_and_the_most_valuable_networks_come_first():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 3, 6, 7, generator=generator)
    labels = torch.randint(0, 3, (2, 6, 7), generator=generator)
    values = {name: loss_of(name)(logits, labels) for name in LOSSES}
    assert len(values) == 16
    for name in ("focal", "nacl", "svls", "ce"):
        torch.testing.assert_close(values[f"{name}_dice"] - values[name], Dice()(logits, labels))
    units = plan_real(("cardiac", "camvid"), LOSSES, ("small", "large"), 3)
    assert len(set(units)) == len(units) == 192
    assert {(unit.size, unit.seed) for unit in units[:32]} == {("small", 0)}
    assert {unit.loss for unit in units[:32]} == set(LOSSES)
    assert {unit.size for unit in units[:96]} == {"small"}
    assert {unit.loss for unit in units[96:132]} == set(CORE)
    assert {unit.seed for unit in units[96:108]} == {0}


def write_cardiac(root, patients=50, shape=(9, 7, 3)):
    for name in ("images", "labels"):
        (root / "cardiac" / name).mkdir(parents=True)
    rng = np.random.default_rng(0)
    for number in range(patients):
        for frame in (1, 2):
            name = f"patient{number:03d}_frame{frame:02d}.nii.gz"
            labels = rng.integers(0, 4, shape).astype(np.uint8)
            for folder, values in (("images", labels * 10.0 + rng.normal(size=shape)), ("labels", labels)):
                nibabel.save(nibabel.Nifti1Image(values, np.eye(4)), root / "cardiac" / folder / name)


def write_camvid(root, counts=(40, 170, 60), shape=(5, 8)):
    for name in ("images", "labels"):
        (root / "camvid" / name).mkdir(parents=True)
    for video, count in zip(("test_0001TP", "test_Seq05VD", "val_0016E5"), counts, strict=True):
        for number in range(count):
            stem = f"{video}_f{number:05d}"
            Image.new("RGB", shape, (255, 0, number % 256)).save(root / "camvid" / "images" / f"{stem}.jpg")
            Image.new("L", shape, number % 12).save(root / "camvid" / "labels" / f"{stem}.png")


def test_patients_are_never_divided_and_intensities_have_no_unit(tmp_path):
    write_cardiac(tmp_path)
    parts = find_parts(tmp_path, "cardiac")
    patients = {part: {case.id.split("_")[0] for case in parts[part]} for part in PARTS}
    assert {part: len(parts[part]) for part in PARTS} == {"train": 50, "cal": 20, "val": 8, "test": 22}
    assert len(set().union(*patients.values())) == sum(map(len, patients.values())) == 50
    image, labels = read_case("cardiac", parts["test"][0])
    assert (image.shape, labels.shape) == ((1, 3, 7, 9), (3, 7, 9))
    assert (float(image.mean()), float(image.std())) == pytest.approx((0, 1), abs=1e-4)
    assert groups("cardiac", ["patient9_frame01", "patient9_frame02", "patient7_frame01"]) == [1, 1, 0]


def test_the_held_out_video_trains_nothing_and_its_parts_lie_one_after_the_other(tmp_path):
    write_camvid(tmp_path)
    parts = find_parts(tmp_path, "camvid")
    for part in PARTS:
        assert all(("Seq05VD" in case.id) == (part in ("cal", "val", "test")) for case in parts[part])
    held_out = [case.id for part in ("cal", "val", "test") for case in parts[part]]
    assert held_out == sorted(held_out)
    assert [len(parts[part]) for part in PARTS] == [100, 29, 14, 85]
    assert not set(parts["cal"]) & set(parts["val"])
    assert groups("camvid", [f"f{number}" for number in range(23)]) == [0] * 10 + [1] * 10 + [2] * 3
    image, labels = read_case("camvid", next(case for case in parts["train"] if "f00011" in case.id))
    assert image.shape == (3, 8, 5)
    assert (labels == -1).all()  # what is void is ignored


def test_a_packed_folder_has_the_same_cases_in_the_same_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(real_data, "SLICE", 6)
    write_cardiac(tmp_path / "full", patients=20)
    write_camvid(tmp_path / "full", counts=(3, 14, 2))
    pack_root(tmp_path / "full", tmp_path / "small")
    for task in ("cardiac", "camvid"):
        full, small = (find_parts(tmp_path / name, task) for name in ("full", "small"))
        assert {p: [c.id for c in full[p]] for p in PARTS} == {p: [c.id for c in small[p]] for p in PARTS}
        (image, labels), (packed, packed_labels) = (read_case(task, parts["test"][0]) for parts in (full, small))
        if task == "cardiac":  # (3, 7, 9) is cut to (3, 6, 6) around the middle
            assert np.array_equal(packed_labels, labels[:, :6, 1:7])
            assert np.corrcoef(packed.ravel(), image[:, :, :6, 1:7].ravel())[0, 1] > 0.999
        else:
            assert packed.shape == (3, image.shape[1] // 2, image.shape[2] // 2)
            assert set(np.unique(packed_labels)) <= set(np.unique(labels))


def test_slices_have_one_size_and_what_is_filled_up_does_not_count(monkeypatch):
    monkeypatch.setattr(real_data, "SLICE", 6)
    image, labels = np.arange(3 * 4 * 9.0).reshape(1, 3, 4, 9), np.arange(3 * 4 * 9).reshape(3, 4, 9)
    made = list(pictures(image, labels))
    assert [(one.shape, two.shape) for one, two in made] == [((1, 6, 6), (6, 6))] * 3
    assert (made[0][1][0] == -1).all()
    assert np.array_equal(made[1][1][1:5], labels[1][:, 1:7])
    assert np.array_equal(made[1][0][0, 1:5], image[0, 1][:, 1:7])


def test_a_folder_that_is_none_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"has no cardiac/images, but the study needs it. Name the folder of the real"):
        find_parts(tmp_path, "cardiac")
    write_cardiac(tmp_path, patients=2)
    with pytest.raises(InputError, match=r"has 4 cases, but .* would be empty. Add cases."):
        find_parts(tmp_path, "cardiac")
    next((tmp_path / "cardiac" / "labels").iterdir()).unlink()
    with pytest.raises(InputError, match=r"has 0 files of labels, but one is needed."):
        find_parts(tmp_path, "cardiac")
