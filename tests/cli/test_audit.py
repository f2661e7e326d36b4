import pytest
import torch

import segcal
from segcal.fitting.certificate import Certificate, Fitted
from segcal.fitting.config import FitConfig


def saved(calibrator, folder, pooling="single"):
    certificate = Certificate("convex", 1.0, 1.0, 0.0, True, 1, 100, 100)
    segcal.save(Fitted(calibrator, certificate, FitConfig(), pooling=pooling), folder)
    return folder


def test_the_promises_are_told_without_data(calibrator, run):
    done = run("audit", calibrator)
    assert done.code == 0
    assert "ts: every promise holds" in done.out
    assert "voxels changed their class" not in done.out


def test_every_voxel_of_the_predictions_is_tried(folders, calibrator, run):
    document = run("audit", calibrator, folders.predictions, *folders.options, "--json").document
    assert document["voxels"] == 6 * 4 * 5 * 6
    assert document["flips"] == 0
    assert document["passed"] is True
    assert document["certificate"]["converged"] is True


def test_a_calibrator_without_promises_shows_a_voxel(tmp_path, run):
    matrix = segcal.make_calibrator("ms", 3)
    with torch.no_grad():
        matrix.weight += torch.linspace(-0.5, 0.5, matrix.weight.numel()).reshape(matrix.weight.shape)
    done = run("audit", saved(matrix, tmp_path / "ms"))
    assert done.code == 0
    assert "makes no promise" in done.out
    assert "class before" in done.out


def test_a_broken_promise_has_an_exit_code_of_its_own(tmp_path, run):
    broken = segcal.make_calibrator("ts", 3)
    with torch.no_grad():
        broken.inverse_temperature.fill_(-1.0)
    done = run("audit", saved(broken, tmp_path / "broken"))
    assert done.code == 4
    assert "A PROMISE IS BROKEN" in done.out


def test_a_damaged_calibrator_is_one_sentence(calibrator, run):
    (calibrator / "weights.safetensors").write_bytes(b"nothing")
    done = run("audit", calibrator)
    assert done.code == 2
    assert len(done.err.splitlines()) == 1
    assert "weights.safetensors is not the one that calibrator.json describes" in done.err


@pytest.mark.parametrize("classes", [2, 5])
def test_predictions_of_another_class_count_are_refused(classes, folders, tmp_path, run):
    folder = saved(segcal.make_calibrator("ts", classes), tmp_path / "other")
    done = run("audit", folder, folders.predictions, *folders.options)
    assert done.code == 2
    assert f"the calibrator has {classes} classes, but the cases have 3" in done.err
