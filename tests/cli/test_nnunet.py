"""What needs no model; fitting and predicting are in tests/integrations/test_nnunet.py."""

import importlib.util
import sys

import pytest

import segcal.integrations

ARGUMENTS = ("nnunet", "predict", "-d", "1", "-c", "2d", "--calibrator", "cal")


def test_without_nnunet_it_says_how_to_install_it(run, monkeypatch):
    if importlib.util.find_spec("nnunetv2") is not None:
        pytest.skip("nnU-Net is installed")
    # Collecting doctests leaves half of a module behind that could not be imported.
    monkeypatch.delitem(sys.modules, "segcal.integrations.nnunet", raising=False)
    monkeypatch.delattr(segcal.integrations, "nnunet", raising=False)
    done = run(*ARGUMENTS)
    assert done.code == 2
    assert done.err == (
        "error: nnunetv2 is not installed, but segcal's part for nnunet needs it. Install it with: "
        "pip install 'segcal[nnunet]'.\n"
    )


@pytest.mark.frameworks
@pytest.mark.filterwarnings("ignore")
def test_a_model_that_is_not_there_is_named(run, tmp_path, monkeypatch):
    for name in ("raw", "preprocessed", "results"):
        (tmp_path / name / "Dataset001_X").mkdir(parents=True)
        monkeypatch.setenv(f"nnUNet_{name}", str(tmp_path / name))
    pytest.importorskip("nnunetv2", reason="nnU-Net is not installed: make setup-frameworks")
    done = run(*ARGUMENTS)
    assert done.code == 2
    assert "nnUNetTrainer__nnUNetPlans__2d is not there, but the model is read from it. Train it, or" in done.err
    (tmp_path / "results" / "Dataset001_X" / "nnUNetTrainer__nnUNetPlans__2d").mkdir()
    done = run(*ARGUMENTS)
    assert done.err.startswith("error: -i and -o are missing, but predictions come from images and go to a folder")
