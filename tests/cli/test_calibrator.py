"""``segcal audit``, ``export``, ``card`` and ``nnunet`` as a user calls them."""

import importlib.util
import json
import sys

import numpy as np
import pytest

import segcal
import segcal.integrations


def test_promises_are_told_without_data_and_every_voxel_of_predictions_is_tried(folders, calibrator, run):
    done = run("audit", calibrator)
    assert done.code == 0
    assert "ts: every promise holds" in done.out
    assert "voxels changed their class" not in done.out
    document = run("audit", calibrator, folders.predictions, *folders.options, "--json").document
    assert (document["voxels"], document["flips"], document["passed"]) == (6 * 4 * 5 * 6, 0, True)
    assert document["certificate"]["converged"] is True


def test_a_calibrator_without_promises_shows_a_voxel(saved, run):
    done = run("audit", saved("ms", weight=np.eye(3) + np.linspace(-0.5, 0.5, 9).reshape(3, 3)))
    assert done.code == 0
    assert "makes no promise" in done.out
    assert "class before" in done.out


def test_a_broken_promise_has_an_exit_code_of_its_own(saved, run):
    done = run("audit", saved("ts", inverse_temperature=-1.0))
    assert done.code == 4
    assert "A PROMISE IS BROKEN" in done.out


def test_a_damaged_calibrator_or_one_of_other_classes_is_one_sentence(folders, calibrator, saved, run):
    for classes in (2, 5):
        done = run("audit", saved("ts", classes), folders.predictions, *folders.options)
        assert done.code == 2
        assert f"the calibrator has {classes} classes, but the cases have 3" in done.err
    (calibrator / "weights.safetensors").write_bytes(b"nothing")
    done = run("audit", calibrator)
    assert (done.code, len(done.err.splitlines())) == (2, 1)
    assert "weights.safetensors is not the one that calibrator.json describes" in done.err


def test_a_calibrator_becomes_a_graph(calibrator, run, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: make setup-frameworks")
    pytest.importorskip("onnxscript", reason="onnxscript is not installed: make setup-frameworks")
    path = tmp_path / "calibrator.onnx"
    done = run("export", calibrator, path)
    assert done.code == 0, done.err
    assert "0 of 288 voxels have another winner than in the library" in done.out
    logits = np.random.default_rng(0).normal(size=(2, 3, 5, 4)).astype(np.float32)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"logits": logits})
    assert np.array_equal(found.argmax(1), logits.argmax(1))
    assert run("export", calibrator, path).err == (
        f"error: {path} exists, but it would be lost. Choose another name, or pass --overwrite.\n"
    )
    again = run("export", calibrator, path, "--overwrite", "--axes", 3, "--json")
    assert again.code == 0
    assert (again.document["flips"], again.document["inputs"]) == (0, ["logits"])


def test_a_card_is_written_from_what_evaluate_wrote(folders, calibrator, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run("evaluate", *folders.both, "--calibrator", calibrator, "--csv", "c.csv").code == 0
    fitted = segcal.load(calibrator)
    first, second = sorted({*folders.scores} - {*fitted.calibration_ids})
    (tmp_path / "groups.csv").write_text(f"case,subgroup\n{first},north\n{second},\n")
    card = ["card", calibrator, "c.csv", "--subgroups", "groups.csv"]
    assert run(*card, "-o", "card.json", "--json").document["subgroups"] == ["north"]
    made = json.loads((tmp_path / "card.json").read_text())
    assert made["evaluation_data"]["cases"] == 2
    assert [each["cases"] for each in made["performance"]] == [2, 1]
    done = run("card", calibrator, "-o", "card.md", "--not-valid-for", "night scenes")
    assert "fitted to 4 cases, measured on 0" in done.out
    assert "- night scenes\n" in (tmp_path / "card.md").read_text()
    (tmp_path / "groups.csv").write_text("a,b\n1,2\n")
    refused = run(*card, "-o", "card.md")
    assert refused.code == 2
    assert "groups.csv has no columns case and subgroup, but both are needed." in refused.err


# What needs no model; fitting and predicting are in tests/integrations/test_nnunet.py.
NNUNET = ("nnunet", "predict", "-d", "1", "-c", "2d", "--calibrator", "cal")


def test_without_nnunet_it_says_how_to_install_it(run, monkeypatch):
    if importlib.util.find_spec("nnunetv2") is not None:
        pytest.skip("nnU-Net is installed")
    # Collecting doctests leaves half of a module behind that could not be imported.
    monkeypatch.delitem(sys.modules, "segcal.integrations.nnunet", raising=False)
    monkeypatch.delattr(segcal.integrations, "nnunet", raising=False)
    done = run(*NNUNET)
    assert done.code == 2
    assert done.err == (
        "error: nnunetv2 is not installed, but segcal's support of nnunet needs it. Install it with: "
        "pip install 'segcal[nnunet]'.\n"
    )


@pytest.mark.frameworks
@pytest.mark.filterwarnings("ignore")
def test_a_model_that_is_not_there_is_named(run, tmp_path, monkeypatch):
    for name in ("raw", "preprocessed", "results"):
        (tmp_path / name / "Dataset001_X").mkdir(parents=True)
        monkeypatch.setenv(f"nnUNet_{name}", str(tmp_path / name))
    pytest.importorskip("nnunetv2", reason="nnU-Net is not installed: make setup-frameworks")
    done = run(*NNUNET)
    assert done.code == 2
    assert "nnUNetTrainer__nnUNetPlans__2d is not there, but the model is read from it. Train it, or" in done.err
    (tmp_path / "results" / "Dataset001_X" / "nnUNetTrainer__nnUNetPlans__2d").mkdir()
    done = run(*NNUNET)
    assert done.err.startswith("error: -i and -o are missing, but predictions come from images and go to a folder")
