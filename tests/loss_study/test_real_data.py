import nibabel
import numpy as np
import pytest
from PIL import Image

from paper.loss_study import real_data
from paper.loss_study.real_data import PARTS, find_parts, groups, pack_root, pictures, read_case
from segcal.errors import InputError


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


def test_patients_are_never_divided(tmp_path):
    write_cardiac(tmp_path)
    parts = find_parts(tmp_path, "cardiac")
    patients = {part: {case.id.split("_")[0] for case in parts[part]} for part in PARTS}
    assert {part: len(parts[part]) for part in PARTS} == {"train": 50, "cal": 20, "val": 8, "test": 22}
    assert len(set().union(*patients.values())) == sum(map(len, patients.values())) == 50


def test_the_held_out_video_trains_nothing_and_its_parts_lie_one_after_the_other(tmp_path):
    write_camvid(tmp_path)
    parts = find_parts(tmp_path, "camvid")
    for part in PARTS:
        assert all(("Seq05VD" in case.id) == (part in ("cal", "val", "test")) for case in parts[part])
    held_out = [case.id for part in ("cal", "val", "test") for case in parts[part]]
    assert held_out == sorted(held_out)
    assert [len(parts[part]) for part in ("cal", "val", "test")] == [29, 14, 85]
    assert not set(parts["cal"]) & set(parts["val"])
    assert len(parts["train"]) == 100


def test_what_is_drawn_together(tmp_path):
    assert groups("cardiac", ["patient9_frame01", "patient9_frame02", "patient7_frame01"]) == [1, 1, 0]
    assert groups("camvid", [f"f{number}" for number in range(23)]) == [0] * 10 + [1] * 10 + [2] * 3


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


def test_what_is_void_is_ignored_and_intensities_have_no_unit(tmp_path):
    write_camvid(tmp_path, counts=(13, 13, 80))
    case = next(case for cases in find_parts(tmp_path, "camvid").values() for case in cases if "f00011" in case.id)
    image, labels = read_case("camvid", case)
    assert image.shape == (3, 8, 5)
    assert (labels == -1).all()
    write_cardiac(tmp_path)
    image, labels = read_case("cardiac", find_parts(tmp_path, "cardiac")["test"][0])
    assert image.shape == (1, 3, 7, 9)
    assert labels.shape == (3, 7, 9)
    assert float(image.mean()) == pytest.approx(0, abs=1e-5)
    assert float(image.std()) == pytest.approx(1, abs=1e-4)


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
