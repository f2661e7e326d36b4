import time

import numpy as np
import pytest
from PIL import Image

from paper.loss_study import real_run
from paper.loss_study.__main__ import main
from paper.loss_study.real import RealStudy, RealUnit
from paper.loss_study.real_page import read_archive
from paper.loss_study.real_run import RealRun, measure_networks, run_real, train_networks

pytestmark = pytest.mark.filterwarnings("ignore::segcal.errors.SuspicionWarning")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("root")
    rng = np.random.default_rng(0)
    for name in ("images", "labels"):
        (folder / "camvid" / name).mkdir(parents=True)
    for video, count in (("val_0016E5", 3), ("test_Seq05VD", 12)):
        for number in range(count):
            labels = np.kron(rng.integers(0, 12, (2, 3)), np.ones((8, 8))).astype(np.uint8)
            picture = np.repeat((20 * labels)[..., None], 3, 2)
            stem = f"{video}_{number:04d}"
            Image.fromarray(labels).save(folder / "camvid" / "labels" / f"{stem}.png")
            Image.fromarray(picture).save(folder / "camvid" / "images" / f"{stem}.jpg")
    return folder


def test_a_few_steps_on_the_cpu_end_in_an_archive_and_go_on_from_there(root, tmp_path, capsys):
    words = ["real", str(root), "--out", str(tmp_path / "out"), "--tasks", "camvid", "--losses", "ce", "ce_dice"]
    words += ["--sizes", "small", "--seeds", "1", "--steps", "1", "--cases", "3"]
    assert main(words) == 0
    assert capsys.readouterr().out == f"2 of 2 networks are in {tmp_path / 'out'}\n"
    rows, facts = read_archive([tmp_path / "out" / "real_losses.zip"])
    assert [row.unit.loss for row in rows] == ["ce", "ce_dice"]
    assert set(rows[0].values) == {"none", "ts", "conic"}
    assert not rows[0].failed
    assert rows[0].steps == 1
    assert all(len(numbers) == len(rows[0].groups) == 3 for numbers in rows[0].values["ts"].values())
    assert rows[0].values["ts"]["dice"] == rows[0].values["none"]["dice"]
    assert facts[0].missing == 0
    written = (tmp_path / "out" / "rows" / "camvid-ce-small-0.json").stat().st_mtime_ns
    assert main(words) == 0
    assert (tmp_path / "out" / "rows" / "camvid-ce-small-0.json").stat().st_mtime_ns == written


def test_a_folder_that_is_none_is_said_before_anything_is_made(root, tmp_path, capsys):
    assert main(["real", str(tmp_path / "nowhere"), "--out", str(tmp_path / "out")]) == 2
    assert "has no cardiac/images, but the study needs it" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def run_of(root, out, **settings):
    for name in real_run.FOLDERS:
        (out / name).mkdir(parents=True, exist_ok=True)
    units = [RealUnit("camvid", loss, "small", 0) for loss in ("ce", "ce_dice")]
    return RealRun(RealStudy(root, steps=1, most=2), out, units, **settings)


def test_without_time_nothing_is_begun(root, tmp_path):
    run = run_of(root, tmp_path, minutes=0.01)
    assert run_real(run) == 2
    rows, facts = read_archive([tmp_path / "real_losses.zip"])
    assert not rows
    assert facts[0].missing == 2


def test_what_would_not_end_in_time_is_not_begun(root, tmp_path):
    units = [RealUnit("camvid", "ce", size, 0) for size in ("small", "large")]
    run = RealRun(RealStudy(root), tmp_path, units)
    (tmp_path / "claims").mkdir()
    now, took = time.time(), {"small": 20.0}
    assert [unit.size for unit, _ in real_run._trainings(run, now + 30.0, {}, took)] == ["small"]
    run.claim("camvid-ce-small-0").unlink()
    assert [unit.size for unit, _ in real_run._trainings(run, now + 70.0, {}, took)] == ["small", "large"]


def test_what_another_process_works_on_is_left_to_it(root, tmp_path):
    run = run_of(root, tmp_path)
    run.claim("camvid-ce-small-0").touch()
    assert train_networks(run, time.time() + 999) == 0
    assert [path.stem for path in (tmp_path / "weights").iterdir()] == ["camvid-ce_dice-small-0"]
    run.claim("measure-camvid-ce_dice-small-0").touch()
    run.claim(real_run.TRAINED).touch()
    measure_networks(run, time.time() + 999)
    assert not list((tmp_path / "rows").iterdir())


def test_a_recording_that_fails_frees_its_networks_and_is_not_tried_again(root, tmp_path, monkeypatch, capsys):
    run = run_of(root, tmp_path)
    monkeypatch.setattr(real_run.torch, "device", lambda _: type("Device", (), {"type": "cuda"}))
    tried = []

    def fails(self, unit, graph):
        tried.append((unit.loss, graph))
        raise RuntimeError("capture failed")
        yield

    monkeypatch.setattr(RealStudy, "train", fails)
    monkeypatch.setattr(real_run, "take_turns", turns)
    assert train_networks(run, time.time() + 999) == real_run.DEVICE_LOST
    assert tried == [("ce", True)]
    assert not run.claim("camvid-ce-small-0").exists()
    assert train_networks(run, time.time() + 999) == 0
    assert tried[1:] == [("ce", False), ("ce_dice", False)]
    assert "camvid-ce-small-0 failed" in capsys.readouterr().err


def turns(trainings, at_once, device):
    """Take turns as on a CPU: here no stream can be made."""
    for name, steps in trainings:
        try:
            next(steps)
        except RuntimeError as error:
            yield real_run.Ended(name, None, error)
