"""From download to table: each public dataset in its published layout, on a few tiny cases."""

import csv
import re

import numpy as np
import pytest
import torch
from PIL import Image

from paper.datasets import acdc, camvid, commands, ensemble, roads
from segcal.errors import InputError
from segcal.types import IGNORED

DATASETS = {"camvid": camvid, "roads": roads, "acdc": acdc}
QUICK = [
    "--members", "2", "--epochs", "1", "--crop", "16", "--widths", "4", "6", "--cal", "4", "--val", "0",
    "--repeats", "1", "--pipelines", "identity", "ts", "--studies",
]  # fmt: skip


def write_camvid(folder, rng):
    names = {
        "train": ["0001TP_006690", "0006R0_f00930", "0006R0_f00960"],
        "val": ["0016E5_07959", "0016E5_07961", "0016E5_08081"],
        "test": ["0001TP_008550", "0001TP_008640", "0001TP_008730", "Seq05VD_f00000", "Seq05VD_f00120"],
    }
    for part, stems in names.items():
        for stem in stems:
            labels = rng.integers(0, 12, (6, 5)).repeat(4, 0).repeat(5, 1).astype(np.uint8)
            picture = (20 * labels[..., None] + rng.integers(0, 9, (24, 25, 3))).astype(np.uint8)
            save(folder / part / f"{stem}.png", picture)
            save(folder / f"{part}annot" / f"{stem}.png", labels)


def write_roads(folder, rng):
    for part, count in (("train", 3), ("valid", 1), ("test", 2)):
        for number in range(count):
            road = rng.random((34, 38)) < 0.3
            picture = (120 * road[..., None] + rng.integers(0, 99, (34, 38, 3))).astype(np.uint8)
            save(folder / part / "sat" / f"{part}{number}_15.tiff", picture)
            save(folder / part / "map" / f"{part}{number}_15.tif", (255 * road).astype(np.uint8))


def write_acdc(folder, rng):
    nibabel = pytest.importorskip("nibabel", reason="nibabel is not installed")
    for number in range(1, 8):
        patient = folder / "training" / f"patient{number:03d}"
        patient.mkdir(parents=True)
        (patient / "Info.cfg").write_text("ED: 1\nES: 12\n")
        for frame in ("frame01", "frame12"):
            labels = rng.integers(0, 4, (18, 20, 3)).astype(np.uint8)
            image = (50 * labels + rng.integers(0, 30, labels.shape)).astype(np.int16)
            for array, end in ((image, ""), (labels, "_gt")):
                path = patient / f"patient{number:03d}_{frame}{end}.nii.gz"
                nibabel.save(nibabel.Nifti1Image(array, np.diag([1.5, 1.5, 8, 1])), path)


WRITERS = {"camvid": write_camvid, "roads": write_roads, "acdc": write_acdc}


def save(path, values):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(values).save(path)


@pytest.fixture
def folder(request, tmp_path):
    place = tmp_path / "data"
    place.mkdir()
    WRITERS[request.param](place, np.random.default_rng(0))
    return place


def run(name, arguments):
    with pytest.raises(SystemExit) as end:
        commands.main(DATASETS[name].DATASET, "", [str(argument) for argument in arguments])
    return end.value.code


# By dataset: its task, how many cases are held out, the shape of a case's logits, and the first group.
EXPECTED = {
    "camvid": ("camvid", 8, (11, 24, 25), "val_0016E5_079"),
    "roads": ("roads", 12, (2, 17, 19), "valid0_15"),
    "acdc": ("cardiac", 6, (4, 3, 20, 18), "patient005"),
}


@pytest.mark.parametrize(("folder", "name"), [(name, name) for name in WRITERS], indirect=["folder"])
def test_a_download_becomes_a_table_and_a_second_run_trains_nothing(folder, name, tmp_path, capsys):
    task, held_out, shape, group = EXPECTED[name]
    out = tmp_path / "out"
    arguments = [folder, "-o", out, *QUICK]
    assert run(name, arguments) == 0
    for member in range(2):
        files = sorted((out / "predictions" / task / f"member_{member}").iterdir())
        logits = np.load(files[0])
        assert (len(files), logits.shape, logits.dtype) == (held_out, shape, np.float16)
    with (out / task / "groups.csv").open() as file:
        assert next(csv.DictReader(file))["group"] == group
    assert "| ts(mean_logits) |" in (out / "results" / task / "tables" / f"table8_{task}.md").read_text()
    written = {path: path.stat().st_mtime_ns for path in (out / "predictions").rglob("*.npy")}
    capsys.readouterr()
    assert run(name, arguments) == 0
    assert "epoch" not in capsys.readouterr().out
    assert written == {path: path.stat().st_mtime_ns for path in (out / "predictions").rglob("*.npy")}
    assert run(name, [*arguments, "--epochs", "2"]) == 2
    expected = f"{out / task} was made with epochs = 1, but it is now 2. Use the same settings, or another folder."
    assert expected in capsys.readouterr().err


def test_a_member_that_is_lost_is_trained_again_and_the_others_are_not(tmp_path, capsys):
    write_roads(tmp_path / "data", np.random.default_rng(0))
    arguments = [tmp_path / "data", "-o", tmp_path / "out", *QUICK]
    assert run("roads", arguments) == 0
    (tmp_path / "out" / "networks" / "roads" / "member_1.pt").unlink()
    prediction = tmp_path / "out" / "predictions" / "roads" / "member_1" / "valid0_15_r0_c0.npy"
    before = prediction.read_bytes()
    prediction.unlink()
    capsys.readouterr()
    assert run("roads", arguments) == 0
    assert prediction.read_bytes() == before
    trained = [line for line in capsys.readouterr().out.splitlines() if "epoch" in line]
    assert [line.split(",")[0] for line in trained] == ["member 1: epoch 1 of 1"]


def test_a_training_that_was_killed_ends_with_the_weights_that_it_would_have_had(tmp_path):
    write_roads(tmp_path / "data", np.random.default_rng(0))
    records = roads.DATASET.records(tmp_path / "data")
    settings = ensemble.Settings(members=1, epochs=10, batch_size=2, crop=16, widths=(4, 6))

    def train(folder, say):
        return ensemble.train_member(roads.DATASET, records, settings, 0, tmp_path / folder, "cpu", say).state_dict()

    def kill(text):
        if "epoch 7" in text:
            raise KeyboardInterrupt

    whole = train("whole", lambda text: None)
    with pytest.raises(KeyboardInterrupt):
        train("killed", kill)
    told = []
    again = train("killed", told.append)
    assert told[0].startswith("member 0: epoch 6 of 10")
    assert all(torch.equal(whole[name], again[name]) for name in whole)


def test_the_copy_of_the_roads_on_kaggle_has_the_same_cases(tmp_path):
    first, other = tmp_path / "first", tmp_path / "tiff"
    write_roads(first, np.random.default_rng(0))
    for part, name in (("train", "train"), ("valid", "val"), ("test", "test")):
        other.mkdir(exist_ok=True)
        (first / part / "sat").rename(other / name)
        (first / part / "map").rename(other / f"{name}_labels")
    records = roads.DATASET.records(tmp_path)
    assert [record.id for record in records if record.part == "held_out"][:2] == ["valid0_15_r0_c0", "valid0_15_r0_c1"]
    pairs = [roads.read(record) for record in records if record.group == "valid0_15"]
    whole = np.asarray(Image.open(other / "val" / "valid0_15.tiff"), np.float32).transpose(2, 0, 1) / 255
    top, bottom = (np.concatenate([pairs[k][0], pairs[k + 1][0]], axis=2) for k in (0, 2))
    assert np.array_equal(np.concatenate([top, bottom], axis=1), whole)


def test_arrays_of_volumes_are_the_transposed_files_and_patients_are_not_divided(tmp_path):
    write_acdc(tmp_path, np.random.default_rng(0))
    import nibabel

    records = acdc.DATASET.records(tmp_path)
    image, labels = acdc.read(records[0])
    stored = np.asarray(nibabel.load(records[0].labels).dataobj)
    assert np.array_equal(labels, stored.transpose())
    assert image.shape == (1, 3, 20, 18)
    assert [float(image.mean()), float(image.std())] == pytest.approx([0, 1], abs=1e-5)
    trained, held_out = ({r.group for r in records if r.part == part} for part in ("train", "held_out"))
    assert (len(trained), len(held_out), trained & held_out) == (4, 3, set())


def test_crops_leave_out_void_and_what_lies_outside_the_image(tmp_path):
    write_camvid(tmp_path, np.random.default_rng(0))
    records = [record for record in camvid.DATASET.records(tmp_path) if record.part == "train"]
    image, labels = ensemble.Crops(camvid.DATASET, records, 30)[0]
    _, stored = camvid.DATASET.read(records[0])
    assert (tuple(image.shape), tuple(labels.shape)) == ((3, 30, 30), (30, 30))
    assert np.array_equal(labels[:24, :25].numpy(), np.where(stored == 11, IGNORED, stored))
    assert (labels[24:] == IGNORED).all()
    assert (labels[:, 25:] == IGNORED).all()
    torch.manual_seed(0)
    small = [ensemble.Crops(camvid.DATASET, records, 8)[0][0] for _ in range(9)]
    assert len({tuple(crop.flatten().tolist()) for crop in small}) > 1


@pytest.mark.parametrize(
    ("name", "gone", "message"),
    [
        ("camvid", "valannot", "lacks the folder valannot, but CamVid in its published layout is needed. Clone the"),
        ("camvid", "testannot/Seq05VD_f00000.png", "lacks the labels of test/Seq05VD_f00000.png in testannot, but"),
        ("roads", "valid/map", "lacks the folder valid/map, but Massachusetts Roads in its published layout is needed"),
        ("acdc", "training", "lacks the folder training, but ACDC in its published layout is needed. Register with"),
        ("acdc", "training/patient002/Info.cfg", "lacks training/patient002/Info.cfg, but ACDC"),
        ("acdc", "training/patient002/patient002_frame01.nii.gz", "lacks the image of training/patient002/patient002_"),
        ("camvid", "", "lacks the folder itself, but CamVid"),
    ],
)
def test_what_is_missing_is_one_sentence(tmp_path, name, gone, message):
    WRITERS[name](tmp_path / "data", np.random.default_rng(0))
    (tmp_path / "data" / gone).rename(tmp_path / "elsewhere")
    with pytest.raises(InputError, match=re.escape(message)):
        DATASETS[name].DATASET.records(tmp_path / "data")


def test_a_part_without_cases_is_missing(tmp_path):
    write_camvid(tmp_path, np.random.default_rng(0))
    for path in (tmp_path / "train").iterdir():
        path.unlink()
    with pytest.raises(InputError, match="lacks every case of the part train, but CamVid"):
        camvid.DATASET.records(tmp_path)
