"""What other libraries count wrong at the size of one street scene, and that our patches of them count it right."""

import importlib.util
import re
from pathlib import Path

import pytest
import torch

from benchmarks.counters import BLOCK, block, error, exact, segcal

PATCHES = Path(__file__).parents[1] / "benchmarks" / "patches"
TIMES = (1024 * 2048) // BLOCK
MODULES = {
    "torchmetrics": "torchmetrics.functional.classification.calibration_error",
    "monai": "monai.metrics.calibration",
}


def patched(name, folder):
    """Return the module of a library with its lines changed as the patch says."""
    spec = importlib.util.find_spec(MODULES[name])
    text = Path(spec.origin).read_text("utf-8")
    for hunk in re.split(r"^@@.*\n", (PATCHES / f"{name}.diff").read_text("utf-8"), flags=re.MULTILINE)[1:]:
        lines = hunk.splitlines(keepends=True)
        old, new = ("".join(line[1:] for line in lines if line[0] == sign) for sign in "-+")
        assert text.count(old) == 1, f"{name} has changed: write the patch again"
        text = text.replace(old, new)
    path = folder / f"{name}_patched.py"
    path.write_text(text, "utf-8")
    made = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(made)
    made.loader.exec_module(module)
    return module


def test_the_error_of_a_block_is_that_of_a_plain_loop():
    probs, labels = block()
    score, hit = probs.numpy().max(0), probs.numpy().argmax(0) == labels.numpy()
    sums = [0.0] * 15
    for one, right in zip(score.tolist(), hit.tolist(), strict=True):
        sums[next(k for k in range(15) if one <= (k + 1) / 15)] += one - right
    assert error(score, hit) == pytest.approx(sum(map(abs, sums)) / len(score), rel=1e-9)


def test_segcal_counts_a_street_scene_right():
    probs, labels = block()
    assert segcal(probs, labels, TIMES) == pytest.approx(exact(probs, labels)["top"], rel=1e-3)


def test_torchmetrics_is_off_and_its_patch_is_not(tmp_path):
    pytest.importorskip("torchmetrics")
    probs, labels = block()
    confidence, right = (values.repeat(TIMES) for values in (probs.amax(0), (probs.argmax(0) == labels).float()))
    true = exact(probs, labels)["top"]
    module = patched("torchmetrics", tmp_path)
    assert float(module._ce_compute(confidence, right, 15)) == pytest.approx(true, rel=1e-3)
    from torchmetrics.functional.classification.calibration_error import _ce_compute

    assert float(_ce_compute(confidence, right, 15)) > 1.3 * true


def test_monai_is_off_and_its_patch_is_not(tmp_path):
    pytest.importorskip("monai")
    probs, labels = block()
    hot = torch.stack([labels == 0, labels == 1]).float()
    given = probs.repeat(1, TIMES)[None], hot.repeat(1, TIMES)[None]
    true = exact(probs, labels)["class"]
    found = patched("monai", tmp_path).CalibrationErrorMetric(num_bins=15)(*given)
    assert float(found.mean()) == pytest.approx(true, rel=1e-3)
    from monai.metrics import CalibrationErrorMetric

    assert float(CalibrationErrorMetric(num_bins=15)(*given).mean()) > 1.1 * true
